//! A plan on its way to a device: buffers are made first, then its weights come while pipelines are compiled.

use packlight_formats::RecordSpec;

use super::arena::Arena;
use super::buffers::Buffers;
use super::device::Gpu;
use super::error::GpuError;
use super::executor::{Dispatch, GpuExecutor};
use super::flow::IN_FLIGHT_BYTES;
use super::pipelines::{Coming, Pipelines};
use super::place::{Placement, check_capacity};
use super::readback::Readback;
use crate::executor::{Capacity, Memory, WeightSink};
use crate::kernels::{self, Call};
use crate::plan::Plan;

/// A plan on a device that waits for its weights: write them through [`WeightSink`], then [`finish`](Self::finish).
#[derive(Debug)]
pub struct GpuLoader {
    gpu: Gpu,
    plan: Plan,
    capacity: Capacity,
    placement: Placement,
    arena: Arena,
    buffers: Buffers,
    /// Those of a pass, then those that choose the likeliest token.
    calls: Vec<Call>,
    passes: usize,
    pipelines: Coming,
}

impl GpuLoader {
    /// Checks that the plan and the capacity fit the device, then allocates everything, weights included.
    pub async fn new(gpu: &Gpu, plan: &Plan, capacity: Capacity) -> Result<Self, GpuError> {
        check_capacity(plan, &gpu.caps(), capacity)?;
        Self::placed(gpu, plan, capacity, Placement::new(plan, &gpu.caps())?).await
    }

    /// The same with a placement that is already made.
    pub(super) async fn placed(
        gpu: &Gpu,
        plan: &Plan,
        capacity: Capacity,
        placement: Placement,
    ) -> Result<Self, GpuError> {
        let calls = kernels::lower(plan, &placement, &gpu.caps())?;
        Self::with_calls(gpu, plan, capacity, placement, calls).await
    }

    /// The same with the calls of a pass made as well.
    pub(crate) async fn with_calls(
        gpu: &Gpu,
        plan: &Plan,
        capacity: Capacity,
        placement: Placement,
        mut calls: Vec<Call>,
    ) -> Result<Self, GpuError> {
        let passes = calls.len();
        calls.extend(kernels::argmax(plan, &placement, &gpu.caps())?);
        let allocated =
            gpu.scoped("allocating weights", || Arena::new(gpu, plan, &placement, IN_FLIGHT_BYTES));
        let arena = allocated.await?;
        let allocated = gpu.scoped("allocating activations and the KV cache", || {
            Buffers::new(gpu, plan, capacity, &calls)
        });
        let buffers = allocated.await?;
        let pipelines = Pipelines::begin(gpu, &calls);
        let (gpu, plan) = (gpu.clone(), plan.clone());
        Ok(Self { gpu, plan, capacity, placement, arena, buffers, calls, passes, pipelines })
    }

    /// Checks that every record was written whole, and waits for the pipelines. Nothing runs before.
    pub async fn finish(self) -> Result<GpuExecutor, GpuError> {
        let Self { gpu, plan, capacity, placement, arena, buffers, calls, passes, pipelines } =
            self;
        arena.finish()?;
        gpu.check("uploading weights")?;
        let pipelines = pipelines.made().await?;
        let bound = gpu.scoped("binding buffers", || {
            let dispatch = |(index, call): (u64, &Call)| {
                let pipeline = pipelines.get(call)?;
                Some(Dispatch {
                    steps: call.steps.clone(),
                    yields_to: call.yields_to.clone(),
                    place: call.place.clone(),
                    kernel: call.kernel.name,
                    work: call.work.clone(),
                    pipeline: pipeline.compute.clone(),
                    bind_group: buffers.bind(
                        &gpu,
                        &arena,
                        &placement,
                        &pipeline.layout,
                        (index, call),
                    ),
                })
            };
            (0..).zip(&calls).map(dispatch).collect::<Option<Vec<_>>>()
        });
        let mut dispatches = bound.await?.ok_or_else(|| GpuError::Refused {
            doing: "making pipelines".into(),
            why: "the compiler gave up on one without a word".into(),
        })?;
        let host_tables =
            plan.host_tables().map(|(table, slot)| (plan.weight(table).clone(), slot)).collect();
        let argmax = dispatches.split_off(passes);
        Ok(GpuExecutor {
            capacity,
            memory: Memory::of(&plan, capacity),
            vocab: plan.vocab(),
            logits: plan.logits,
            logits_width: plan.slot(plan.logits).width.into(),
            ropes: plan.ropes,
            length: 0,
            host_tables,
            buffers,
            dispatches,
            argmax,
            pipelines: pipelines.count(),
            readback: Readback::default(),
            gpu,
        })
    }
}

impl WeightSink for GpuLoader {
    type Error = GpuError;

    fn write(&mut self, record: &RecordSpec, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let mut on_host = self
            .plan
            .host_tables()
            .flat_map(|(table, _)| self.plan.weight(table).storage.records());
        if on_host.any(|held| held.name == record.name) {
            return Ok(());
        }
        self.arena.write(&self.gpu, record, offset, bytes)
    }

    async fn settle(&mut self) -> Result<(), GpuError> {
        self.arena.settle(&self.gpu).await
    }
}
