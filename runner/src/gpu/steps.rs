//! A call step by step, for those who look for the step that goes wrong.

use super::buffers::Begun;
use super::error::GpuError;
use super::executor::{Copied, GpuExecutor};
use crate::executor::{Inputs, Live, Want};
use crate::plan::{Left, Plan};

impl GpuExecutor {
    /// Begins a call that [`GpuExecutor::step`] goes on with: its inputs at positions `past..`, logits wanted of all.
    pub fn begin_steps(&mut self, inputs: Inputs<'_>, past: u32) -> Result<Live, GpuError> {
        Ok(self.begin(inputs, past, Want::AllLogits, 1)?[0].live)
    }

    /// Runs the next step of a call and returns what it leaves: a slot's rows in use, or keys and then values of the
    /// positions up to now.
    pub async fn step(
        &mut self,
        plan: &Plan,
        step: usize,
        live: Live,
    ) -> Result<Vec<f32>, GpuError> {
        let alone = step..step + 1;
        let begun = (0, Begun { live, first: 0 });
        let dispatches = self.dispatches.iter().filter(|dispatch| dispatch.steps == alone);
        self.submit([(begun, dispatches)], None)?;
        let (parts, floats) = match plan.steps[step].op.leaves() {
            Left::Slot(id) => {
                let slot = plan.slot(id);
                let rows = slot.rows.count(live.tokens, live.outputs);
                (vec![self.buffers.slot(id).clone()], u64::from(rows) * u64::from(slot.width))
            }
            Left::Cache(id) => {
                let cache = plan.cache(id);
                let width = u64::from(cache.kv_heads) * u64::from(cache.head_dim);
                let parts = self.buffers.cache(id).map(Clone::clone).to_vec();
                (parts, u64::from(live.past + live.tokens) * width)
            }
            Left::History(id) => {
                let width = u64::from(plan.histories[id.0].width);
                let ring = self.buffers.history(id).clone();
                (vec![ring], u64::from(live.past + live.tokens) * width)
            }
        };
        let mut values = Vec::new();
        for part in parts {
            let bytes = (4 * floats).min(part.size());
            let result = self.readback.take(&self.gpu, bytes);
            let copy = Copied { from: &part, offset: 0, to: &result, bytes };
            self.submit([(begun, std::iter::empty())], Some(copy))?;
            values.extend(self.readback.read::<f32>(&self.gpu, result, bytes).await?);
        }
        Ok(values)
    }
}
