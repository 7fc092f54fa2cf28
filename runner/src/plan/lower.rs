//! A model description becomes a plan. Written out by hand, block by block: this is where the forward pass can be read.

use packlight_formats::model::{
    Attention, Experts, Gated, Head, Layer, Linear, Mixer, Mlp, Model, Norm, Norms, PerLayerInput,
    PerLayerInputs, Projections, Role, ShortConv, Weight,
};
use packlight_formats::quant::Assignment;

use super::{
    Cache, CacheId, Columns, Factor, Heads, History, HistoryId, Op, Plan, PlanWeight, RopeIndex,
    Rows, Slot, SlotId, Step, WeightId,
};

impl Plan {
    /// The plan of a model whose weights are stored as `assignment` says.
    pub fn lower(model: &Model, assignment: &Assignment) -> Self {
        let (plan, place) = (Self::empty(model), "embedding".into());
        let mut lower = Lower { assignment, plan, place, caches: Vec::new(), window: None };
        lower.model(model);
        lower.plan
    }

    fn empty(model: &Model) -> Self {
        Self {
            slots: Vec::new(),
            weights: Vec::new(),
            caches: Vec::new(),
            histories: Vec::new(),
            ropes: model.ropes.clone(),
            steps: Vec::new(),
            logits: SlotId(0),
        }
    }
}

/// Where the keys and values of a layer are.
enum KeysValues {
    /// Projected by the layer itself, and not stored yet.
    New(Heads, Heads),
    /// In the cache of another layer.
    Cached(CacheId),
}

struct Lower<'a> {
    assignment: &'a Assignment,
    plan: Plan,
    place: String,
    /// The caches that layers read, theirs or others', by layer; `None` where a layer does not attend.
    caches: Vec<Option<CacheId>>,
    /// What the cache of the current layer is looked at through.
    window: Option<u32>,
}

impl Lower<'_> {
    fn model(&mut self, model: &Model) {
        let x = self.slot("x", Rows::Tokens, model.hidden);
        let embed = self.weight(&model.embed);
        self.push(Op::Gather { table: embed, out: x });
        self.scale(x, model.embed_scale);
        let inputs = model.per_layer_inputs.as_ref().map(|inputs| self.per_layer_inputs(inputs, x));
        for (i, layer) in (0..).zip(&model.layers) {
            self.window = model.cache_window(i as usize);
            self.layer(i, layer, x, model.residual_scale);
            if let (Some(input), Some((inputs, width))) = (&layer.per_layer_input, inputs) {
                self.per_layer_input(input, Columns { slot: inputs, offset: i * width }, x);
            }
            if let Some(scale) = &layer.scale {
                let by = Factor::Weight(self.weight(scale));
                self.push(Op::Scale { x, by });
            }
        }
        self.head(model, embed, x);
    }

    fn head(&mut self, model: &Model, embed: WeightId, x: SlotId) {
        self.place = "head".into();
        let last = self.slot("last", Rows::Outputs, model.hidden);
        let normed = self.slot("last_normed", Rows::Outputs, model.hidden);
        let logits = self.slot("logits", Rows::Outputs, model.vocab);
        self.push(Op::Copy { x, out: last });
        self.norm(&model.norm, last, normed);
        match &model.head {
            Head::Tied => {
                self.push(Op::Matmul { x: normed, weight: embed, bias: None, out: logits });
            }
            Head::Own(head) => self.linear(head, normed, logits),
        }
        self.scale(logits, model.logit_scale);
        if let Some(cap) = model.logit_softcap {
            self.push(Op::Softcap { x: logits, cap });
        }
        self.plan.logits = logits;
    }

    fn layer(&mut self, i: u32, layer: &Layer, x: SlotId, residual_scale: Option<f32>) {
        let kind = if layer.mixer.attention().is_some() { "attention" } else { "conv" };
        self.place = format!("layer {i} {kind}");
        let read = self.pre_norm(&layer.mixer_norms, x);
        let y = self.slot("y", Rows::Tokens, self.plan.slot(x).width);
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(attention, read, y),
            Mixer::ShortConv(conv) => self.short_conv(conv, read, y),
        }
        self.add(&layer.mixer_norms, x, y, residual_scale);

        self.place = format!("layer {i} mlp");
        let read = self.pre_norm(&layer.mlp_norms, x);
        match &layer.mlp {
            Mlp::Gated(gated) => self.gated(gated, read, y),
            Mlp::Experts(experts) => self.experts(experts, read, y),
        }
        self.add(&layer.mlp_norms, x, y, residual_scale);
        self.place = format!("layer {i} output");
    }

    /// What a sublayer reads.
    fn pre_norm(&mut self, norms: &Norms, x: SlotId) -> SlotId {
        let Some(norm) = norms.pre() else { return x };
        let normed = self.slot("normed", Rows::Tokens, self.plan.slot(x).width);
        self.norm(norm, x, normed);
        normed
    }

    /// Adds what a sublayer has written to `y`.
    fn add(&mut self, norms: &Norms, x: SlotId, y: SlotId, scale: Option<f32>) {
        let y = match norms.post() {
            Some(norm) => {
                let normed = self.slot("normed", Rows::Tokens, self.plan.slot(y).width);
                self.norm(norm, y, normed);
                normed
            }
            None => y,
        };
        self.push(Op::Add { x, y, scale });
    }

    fn attention(&mut self, attention: &Attention, x: SlotId, out: SlotId) {
        let Attention { heads, head_dim, scale, softcap, window, .. } = *attention;
        let (q, kv) = self.project(attention, x);
        if let Some(norm) = &attention.q_norm {
            self.head_norm(norm, q);
        }
        self.rope(attention, q);
        let cache = match kv {
            KeysValues::New(k, v) => self.store(attention, k, v),
            KeysValues::Cached(cache) => cache,
        };
        self.caches.push(Some(cache));
        let mixed = self.slot("mixed", Rows::Tokens, heads * head_dim);
        self.push(Op::Attend { q, cache, scale, softcap, window, out: mixed });
        self.linear(&attention.out, mixed, out);
    }

    /// Queries, and keys and values as they are projected.
    fn project(&mut self, attention: &Attention, x: SlotId) -> (Heads, KeysValues) {
        let Attention { heads, kv_heads, head_dim, .. } = *attention;
        let mut part = |name, linear: &Linear, heads| {
            let slot = self.slot(name, Rows::Tokens, heads * head_dim);
            self.linear(linear, x, slot);
            Heads { slot, offset: 0, heads, head_dim }
        };
        match &attention.projections {
            Projections::Fused(qkv) => {
                let all = part("qkv", qkv, heads + 2 * kv_heads);
                let part = |first: u32, heads| Heads { offset: first * head_dim, heads, ..all };
                let (k, v) = (part(heads, kv_heads), part(heads + kv_heads, kv_heads));
                (part(0, heads), KeysValues::New(k, v))
            }
            Projections::Separate { q, k, v } => {
                let (q, k) = (part("q", q, heads), part("k", k, kv_heads));
                (q, KeysValues::New(k, part("v", v, kv_heads)))
            }
            Projections::KeyIsValue { q, k } => {
                let (q, k) = (part("q", q, heads), part("k", k, kv_heads));
                let slot = self.slot("v", Rows::Tokens, kv_heads * head_dim);
                self.push(Op::Copy { x: k.slot, out: slot });
                (q, KeysValues::New(k, Heads { slot, ..k }))
            }
            Projections::Shared { q, with } => {
                let q = part("q", q, heads);
                let cache = self.caches[*with as usize];
                let cache = cache.unwrap_or_else(|| unreachable!("owners in a valid model attend"));
                (q, KeysValues::Cached(cache))
            }
        }
    }

    /// Finishes keys and values and puts them into a cache of their own.
    fn store(&mut self, attention: &Attention, k: Heads, v: Heads) -> CacheId {
        let Attention { kv_heads, head_dim, .. } = *attention;
        if let Some(norm) = &attention.k_norm {
            self.head_norm(norm, k);
        }
        if let Some(eps) = attention.v_norm_eps {
            self.push(Op::HeadNorm { x: v, weight: None, eps });
        }
        self.rope(attention, k);
        self.plan.caches.push(Cache { kv_heads, head_dim, window: self.window });
        let cache = CacheId(self.plan.caches.len() - 1);
        self.push(Op::StoreKv { k, v, cache });
        cache
    }

    fn rope(&mut self, attention: &Attention, x: Heads) {
        if let Some(id) = attention.rope {
            self.push(Op::Rope { x, rope: RopeIndex(id.0 as usize) });
        }
    }

    fn short_conv(&mut self, conv: &ShortConv, x: SlotId, out: SlotId) {
        let width = self.plan.slot(x).width;
        let slot = self.slot("conv_in", Rows::Tokens, 3 * width);
        self.linear(&conv.input, x, slot);
        let part = |i| Columns { slot, offset: i * width };
        self.plan.histories.push(History { width, window: conv.length() });
        let history = HistoryId(self.plan.histories.len() - 1);
        self.push(Op::StoreProduct { x: part(2), by: part(0), history });
        let kernel = self.weight(&conv.kernel);
        let bias = conv.bias.as_ref().map(|bias| self.weight(bias));
        let convolved = self.slot("convolved", Rows::Tokens, width);
        self.push(Op::Convolve { history, kernel, bias, gate: part(1), out: convolved });
        self.linear(&conv.output, convolved, out);
        self.caches.push(None);
    }

    fn gated(&mut self, mlp: &Gated, x: SlotId, out: SlotId) {
        let width = u32_of(mlp.down.weight.columns());
        let slot = self.slot("gate_up", Rows::Tokens, 2 * width);
        let gated = self.slot("gated", Rows::Tokens, width);
        self.linear(&mlp.gate_up, x, slot);
        let (gate, up) = (Columns { slot, offset: 0 }, Columns { slot, offset: width });
        self.push(Op::Gate { gate, up, activation: mlp.activation, out: gated });
        self.linear(&mlp.down, gated, out);
    }

    fn experts(&mut self, mlp: &Experts, x: SlotId, out: SlotId) {
        let Experts { per_token, normalised, activation, .. } = *mlp;
        let (count, width) = (u32_of(mlp.router.weight.rows()), u32_of(mlp.down.weight.columns()));
        let logits = self.slot("router", Rows::Tokens, count);
        let experts = self.slot("experts", Rows::Tokens, per_token);
        let shares = self.slot("shares", Rows::Tokens, per_token);
        self.linear(&mlp.router, x, logits);
        self.push(Op::Route { logits, normalised, experts, shares });

        let rows = Rows::PerToken(per_token);
        let slot = self.slot("expert_gate_up", rows, 2 * width);
        let gated = self.slot("expert_gated", rows, width);
        let each = self.slot("expert_out", rows, self.plan.slot(x).width);
        self.expert_linear(&mlp.gate_up, x, experts, slot);
        let (gate, up) = (Columns { slot, offset: 0 }, Columns { slot, offset: width });
        self.push(Op::Gate { gate, up, activation, out: gated });
        self.expert_linear(&mlp.down, gated, experts, each);
        self.push(Op::Mix { x: each, shares, out });
    }

    fn expert_linear(&mut self, linear: &Linear, x: SlotId, experts: SlotId, out: SlotId) {
        let weight = self.weight(&linear.weight);
        let bias = linear.bias.as_ref().map(|bias| self.weight(bias));
        self.push(Op::ExpertMatmul { x, experts, weight, bias, out });
    }

    /// Computes what every layer is told of a token: a slot, and how wide a layer's part of it is.
    fn per_layer_inputs(&mut self, inputs: &PerLayerInputs, x: SlotId) -> (SlotId, u32) {
        self.place = "per-layer inputs".into();
        let (width, all) = (inputs.width, u32_of(inputs.table.columns()));
        let slot = self.slot("per_layer", Rows::Tokens, all);
        self.linear(&inputs.projection, x, slot);
        self.scale(slot, Some(inputs.projection_scale));
        let parts = Heads { slot, offset: 0, heads: all / width, head_dim: width };
        self.head_norm(&inputs.norm, parts);
        let rows = self.slot("per_layer_rows", Rows::Tokens, all);
        let table = self.weight(&inputs.table);
        self.push(Op::HostGather { table, out: rows });
        self.push(Op::Add { x: slot, y: rows, scale: Some(inputs.table_scale) });
        self.scale(slot, Some(inputs.scale));
        (slot, width)
    }

    fn per_layer_input(&mut self, input: &PerLayerInput, inputs: Columns, x: SlotId) {
        let (hidden, width) = (self.plan.slot(x).width, u32_of(input.gate.weight.rows()));
        let gate = self.slot("layer_gate", Rows::Tokens, width);
        let gated = self.slot("layer_gated", Rows::Tokens, width);
        let y = self.slot("y", Rows::Tokens, hidden);
        let normed = self.slot("normed", Rows::Tokens, hidden);
        self.linear(&input.gate, x, gate);
        let (gate, activation) = (Columns { slot: gate, offset: 0 }, input.activation);
        self.push(Op::Gate { gate, up: inputs, activation, out: gated });
        self.linear(&input.projection, gated, y);
        self.norm(&input.norm, y, normed);
        self.push(Op::Add { x, y: normed, scale: None });
    }

    fn scale(&mut self, x: SlotId, factor: Option<f32>) {
        if let Some(factor) = factor {
            self.push(Op::Scale { x, by: Factor::Constant(factor) });
        }
    }
    fn norm(&mut self, norm: &Norm, x: SlotId, out: SlotId) {
        let weight = self.weight(&norm.weight);
        self.push(Op::RmsNorm { x, weight, eps: norm.eps, out });
    }

    fn head_norm(&mut self, norm: &Norm, x: Heads) {
        // A norm over the whole projection is one over a single wide head.
        let head_dim = u32_of(norm.weight.rows());
        let heads = x.heads * x.head_dim / head_dim.max(1);
        let weight = Some(self.weight(&norm.weight));
        self.push(Op::HeadNorm { x: Heads { heads, head_dim, ..x }, weight, eps: norm.eps });
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
        let (rows, columns) = match weight.role {
            // Whatever its shape, it is never taken apart.
            Role::Vector => (weight.rows() * weight.columns(), 1),
            _ => (weight.rows(), weight.columns()),
        };
        self.plan.weights.push(PlanWeight {
            name: weight.name.clone(),
            rows: u32_of(rows),
            columns: u32_of(columns),
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
