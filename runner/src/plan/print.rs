//! A plan as text, one line a step: what its snapshot tests compare and what `inspect` prints.

use std::fmt::{Display, Formatter, Result};

use super::{Columns, Factor, Heads, History, Left, Op, Plan, Rows, SlotId, WeightId};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (i, cache) in self.caches.iter().enumerate() {
            let (kv_heads, head_dim) = (cache.kv_heads, cache.head_dim);
            let positions = match cache.window {
                Some(window) => format!("window {window}"),
                None => "positions".into(),
            };
            writeln!(f, "cache {i}: [{positions}, {kv_heads}, {head_dim}] x 2")?;
        }
        for (i, History { width, window }) in self.histories.iter().enumerate() {
            writeln!(f, "history {i}: [window {window}, {width}]")?;
        }
        for step in &self.steps {
            writeln!(f, "{:<20} {}", step.place, Line(self, &step.op))?;
        }
        write!(f, "logits: {}", self.slot_text(self.logits))
    }
}

/// An operation as text.
struct Line<'a>(&'a Plan, &'a Op);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.op(f, self.1)
    }
}

impl Plan {
    /// An operation of this plan as its line in the list.
    pub fn line(&self, op: &Op) -> String {
        Line(self, op).to_string()
    }

    /// The tensor that a step leaves something in.
    pub fn left_text(&self, left: Left) -> String {
        match left {
            Left::Slot(slot) => self.slot_text(slot),
            Left::Cache(cache) => format!("cache {}", cache.0),
            Left::History(history) => format!("history {}", history.0),
        }
    }

    fn op(&self, f: &mut Formatter<'_>, op: &Op) -> Result {
        let slot = |id| self.slot_text(id);
        let weight = |id| self.weight_text(id);
        let heads = |x| self.heads_text(x);
        match op {
            Op::Gather { table, out } => {
                write!(f, "gather    {} -> {}", weight(*table), slot(*out))
            }
            Op::HostGather { table, out } => {
                write!(f, "gather    {} on the host -> {}", weight(*table), slot(*out))
            }
            Op::RmsNorm { x, weight: w, eps, out } => {
                write!(f, "rms_norm  {} * {} eps {eps:e} -> {}", slot(*x), weight(*w), slot(*out))
            }
            Op::HeadNorm { x, weight: w, eps } => {
                write!(f, "head_norm {}", heads(*x))?;
                if let Some(w) = w {
                    write!(f, " * {}", weight(*w))?;
                }
                write!(f, " eps {eps:e}")
            }
            Op::Matmul { x, weight: w, bias, out } => {
                write!(f, "matmul    {} @ {}", slot(*x), weight(*w))?;
                if let Some(bias) = bias {
                    write!(f, " + {}", weight(*bias))?;
                }
                write!(f, " -> {}", slot(*out))
            }
            Op::Rope { x, rope } => write!(f, "rope      {} by rope {}", heads(*x), rope.0),
            Op::StoreKv { k, v, cache } => {
                write!(f, "store_kv  {}, {} -> cache {}", heads(*k), heads(*v), cache.0)
            }
            Op::Attend { q, cache, scale, softcap, window, out } => {
                write!(f, "attend    {} over cache {} scale {scale}", heads(*q), cache.0)?;
                if let Some(cap) = softcap {
                    write!(f, " softcap {cap}")?;
                }
                if let Some(window) = window {
                    write!(f, " window {window}")?;
                }
                write!(f, " -> {}", slot(*out))
            }
            Op::Gate { gate, up, activation, out } => {
                let width = self.slot(*out).width;
                let (gate, up) = (self.columns_text(*gate, width), self.columns_text(*up, width));
                write!(f, "gate      {activation:?} {gate} * {up} -> {}", slot(*out))
            }
            Op::Route { logits, normalised, experts, shares } => {
                let kind = if *normalised { " normalised" } else { "" };
                let (logits, experts, shares) = (slot(*logits), slot(*experts), slot(*shares));
                write!(f, "route     {logits}{kind} -> {experts}, {shares}")
            }
            Op::ExpertMatmul { x, experts, weight: w, bias, out } => {
                write!(f, "experts   {} @ {}", slot(*x), weight(*w))?;
                if let Some(bias) = bias {
                    write!(f, " + {}", weight(*bias))?;
                }
                write!(f, " of {} -> {}", slot(*experts), slot(*out))
            }
            Op::Mix { x, shares, out } => {
                write!(f, "mix       {} by {} -> {}", slot(*x), slot(*shares), slot(*out))
            }
            Op::StoreProduct { x, by, history } => {
                let width = self.histories[history.0].width;
                let (x, by) = (self.columns_text(*x, width), self.columns_text(*by, width));
                write!(f, "store     {x} * {by} -> history {}", history.0)
            }
            Op::Convolve { history, kernel, bias, gate, out } => {
                write!(f, "convolve  history {} by {}", history.0, weight(*kernel))?;
                if let Some(bias) = bias {
                    write!(f, " + {}", weight(*bias))?;
                }
                let gate = self.columns_text(*gate, self.slot(*out).width);
                write!(f, " * {gate} -> {}", slot(*out))
            }
            Op::Add { x, y, scale: None } => {
                write!(f, "add       {} += {}", slot(*x), slot(*y))
            }
            Op::Add { x, y, scale: Some(scale) } => {
                write!(f, "add       {} += {scale} * {}", slot(*x), slot(*y))
            }
            Op::Scale { x, by: Factor::Constant(by) } => {
                write!(f, "scale     {} *= {by}", slot(*x))
            }
            Op::Scale { x, by: Factor::Weight(by) } => {
                write!(f, "scale     {} *= {}", slot(*x), weight(*by))
            }
            Op::Softcap { x, cap } => write!(f, "softcap   {} at {cap}", slot(*x)),
            Op::Copy { x, out } => write!(f, "copy      {} -> {}", slot(*x), slot(*out)),
        }
    }

    fn slot_text(&self, id: SlotId) -> String {
        let slot = self.slot(id);
        let rows = match slot.rows {
            Rows::Tokens => "tokens".into(),
            Rows::Outputs => "outputs".into(),
            Rows::PerToken(count) => format!("{count} x tokens"),
        };
        format!("{}[{rows}, {}]", slot.name, slot.width)
    }

    fn columns_text(&self, x: Columns, width: u32) -> String {
        format!("{}[{}..{}]", self.slot(x.slot).name, x.offset, x.offset + width)
    }

    fn weight_text(&self, id: WeightId) -> String {
        let weight = self.weight(id);
        match weight.columns {
            1 => format!("{}[{}]", weight.name, weight.rows),
            columns => format!("{}[{}, {columns}]", weight.name, weight.rows),
        }
    }

    fn heads_text(&self, x: Heads) -> String {
        let end = x.offset + x.heads * x.head_dim;
        format!("{}[{}..{end}] as {} x {}", self.slot(x.slot).name, x.offset, x.heads, x.head_dim)
    }
}
