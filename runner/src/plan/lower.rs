//! A model description becomes a plan. Written out by hand, block by block: this is where the forward pass can be read.

use packlight_formats::model::{Attention, Head, Layer, Linear, Mlp, Model, Norm, Weight};
use packlight_formats::quant::Assignment;

use super::{
    Cache, CacheId, Heads, Op, Plan, PlanWeight, RopeIndex, Rows, Slot, SlotId, Step, WeightId,
};

impl Plan {
    /// The plan of a model whose weights are stored as `assignment` says.
    pub fn lower(model: &Model, assignment: &Assignment) -> Self {
        let mut lower = Lower { assignment, plan: Self::empty(model), place: "embedding".into() };
        lower.model(model);
        lower.plan
    }

    fn empty(model: &Model) -> Self {
        Self {
            slots: Vec::new(),
            weights: Vec::new(),
            caches: Vec::new(),
            ropes: model.ropes.clone(),
            steps: Vec::new(),
            logits: SlotId(0),
        }
    }
}

struct Lower<'a> {
    assignment: &'a Assignment,
    plan: Plan,
    place: String,
}

impl Lower<'_> {
    fn model(&mut self, model: &Model) {
        let x = self.slot("x", Rows::Tokens, model.hidden);
        let embed = self.weight(&model.embed);
        self.push(Op::Gather { table: embed, out: x });
        for (i, layer) in model.layers.iter().enumerate() {
            self.layer(i, layer, x);
        }
        self.place = "head".into();
        let last = self.slot("last", Rows::Outputs, model.hidden);
        let normed = self.slot("last_normed", Rows::Outputs, model.hidden);
        let logits = self.slot("logits", Rows::Outputs, model.vocab);
        self.push(Op::LastRows { x, out: last });
        self.norm(&model.norm, last, normed);
        match &model.head {
            Head::Tied => {
                self.push(Op::Matmul { x: normed, weight: embed, bias: None, out: logits });
            }
            Head::Own(head) => self.linear(head, normed, logits),
        }
        self.plan.logits = logits;
    }

    fn layer(&mut self, i: usize, layer: &Layer, x: SlotId) {
        let hidden = self.plan.slot(x).width;
        let normed = self.slot("normed", Rows::Tokens, hidden);
        let y = self.slot("y", Rows::Tokens, hidden);

        self.place = format!("layer {i} attention");
        self.norm(&layer.attention_norm, x, normed);
        self.attention(&layer.attention, normed, y);
        self.push(Op::Add { x, y });

        self.place = format!("layer {i} mlp");
        self.norm(&layer.mlp_norm, x, normed);
        self.mlp(&layer.mlp, normed, y);
        self.push(Op::Add { x, y });
    }

    fn attention(&mut self, attention: &Attention, x: SlotId, out: SlotId) {
        let Attention { heads, kv_heads, head_dim, scale, window, .. } = *attention;
        let qkv = self.slot("qkv", Rows::Tokens, (heads + 2 * kv_heads) * head_dim);
        let mixed = self.slot("mixed", Rows::Tokens, heads * head_dim);
        let part =
            |offset: u32, heads| Heads { slot: qkv, offset: offset * head_dim, heads, head_dim };
        let (q, k, v) = (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads));

        self.linear(&attention.qkv, x, qkv);
        if let Some(norm) = &attention.qk_norm {
            self.head_norm(&norm.q, q);
            self.head_norm(&norm.k, k);
        }
        let rope = RopeIndex(attention.rope.0 as usize);
        self.push(Op::Rope { x: q, rope });
        self.push(Op::Rope { x: k, rope });
        let cache = CacheId(self.plan.caches.len());
        self.plan.caches.push(Cache { kv_heads, head_dim });
        self.push(Op::StoreKv { k, v, cache });
        self.push(Op::Attend { q, cache, scale, window, out: mixed });
        self.linear(&attention.out, mixed, out);
    }

    fn mlp(&mut self, mlp: &Mlp, x: SlotId, out: SlotId) {
        let width = u32_of(mlp.down.weight.columns());
        let gate_up = self.slot("gate_up", Rows::Tokens, 2 * width);
        let gated = self.slot("gated", Rows::Tokens, width);
        self.linear(&mlp.gate_up, x, gate_up);
        self.push(Op::Gate { x: gate_up, activation: mlp.activation, out: gated });
        self.linear(&mlp.down, gated, out);
    }

    fn norm(&mut self, norm: &Norm, x: SlotId, out: SlotId) {
        let weight = self.weight(&norm.weight);
        self.push(Op::RmsNorm { x, weight, eps: norm.eps, out });
    }

    fn head_norm(&mut self, norm: &Norm, x: Heads) {
        let weight = self.weight(&norm.weight);
        self.push(Op::HeadNorm { x, weight, eps: norm.eps });
    }

    fn linear(&mut self, linear: &Linear, x: SlotId, out: SlotId) {
        let weight = self.weight(&linear.weight);
        let bias = linear.bias.as_ref().map(|bias| self.weight(bias));
        self.push(Op::Matmul { x, weight, bias, out });
    }

    /// The slot of that name and size: layers of one shape share their buffers.
    fn slot(&mut self, name: &'static str, rows: Rows, width: u32) -> SlotId {
        let slots = &mut self.plan.slots;
        let found = slots
            .iter()
            .position(|slot| slot.name == name && slot.rows == rows && slot.width == width);
        SlotId(found.unwrap_or_else(|| {
            slots.push(Slot { name, width, rows });
            slots.len() - 1
        }))
    }

    fn weight(&mut self, weight: &Weight) -> WeightId {
        self.plan.weights.push(PlanWeight {
            name: weight.name.clone(),
            rows: u32_of(weight.rows()),
            columns: u32_of(weight.columns()),
            storage: self.assignment.storage(weight),
        });
        WeightId(self.plan.weights.len() - 1)
    }

    fn push(&mut self, op: Op) {
        self.plan.steps.push(Step { place: self.place.clone(), op });
    }
}

/// Dimensions of a model are u32; a weight's shape, derived from them, fits unless the description lies.
fn u32_of(dim: u64) -> u32 {
    u32::try_from(dim).unwrap_or(u32::MAX)
}
