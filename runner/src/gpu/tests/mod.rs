//! The GPU against the CPU reference: both run the same plan from the same bytes.
//!
//! "Row N of the behaviours" numbers what this project took over from the WebGPU runtimes of TVM, WebLLM and ExecuTorch:
//! each was a bug or a missing feature there.

mod layouts;
mod limits;
mod mixers;
pub(crate) mod models;
mod ops;
mod optional;
mod rings;

use packlight_formats::quant::float::stored_bits;
use packlight_formats::quant::{Grouped, Order, Storage};
use packlight_formats::{Dtype, RecordSpec};
use pollster::block_on;

use super::*;
use crate::executor::{Capacity, Inputs, Live, Output, Want, WeightSink};
use crate::packed::PackedWeights;
use crate::plan::{Op, Plan, PlanWeight, Rows, Slot, SlotId, Step, WeightId};
use crate::reference::Reference;

const Q4: Grouped = Grouped::mlc(4, 32);
/// Ten codes a word, two bits left over, and an odd number of words for most widths.
const Q3: Grouped = Grouped::mlc(3, 40);

const CAPACITY: Capacity = Capacity { context: 320, chunk: 48, outputs: 48 };

/// A device held to these limits; `None`, said loudly, where the machine has none and `REQUIRE_GPU` is not set.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
pub(crate) fn gpu(ceiling: Caps) -> Option<Gpu> {
    match block_on(Gpu::open(Some(ceiling))) {
        Ok(gpu) => Some(gpu),
        Err(GpuError::NoAdapter) if std::env::var_os("REQUIRE_GPU").is_none() => {
            eprintln!(
                "SKIPPED: no WebGPU adapter on this machine; set REQUIRE_GPU=1 to fail instead"
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Devices at the floor: one that is given the kernels of GPUs, and one those of software where it is such.
pub(crate) fn floors() -> Vec<Gpu> {
    let software = Caps { software: true, ..Caps::floor() };
    [Caps::floor(), software].into_iter().filter_map(gpu).collect()
}

/// Marsaglia's xorshift: the same numbers everywhere.
struct Noise(u32);

impl Noise {
    /// A stream of its own for every name.
    fn of(name: &str) -> Self {
        Self(
            name.bytes()
                .fold(0x9e37_79b9, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
                | 1,
        )
    }

    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// Uniform in -1..1.
    fn value(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// A record's bytes: random codes in every bit, padding included, and scales of either sign.
fn content(record: &RecordSpec) -> Vec<u8> {
    let mut noise = Noise::of(&record.name);
    let is_scale = record.name.ends_with("scale");
    let mut element = || {
        if record.dtype == Dtype::Uint32 {
            return noise.bits().to_le_bytes().to_vec();
        }
        let value = noise.value() * if is_scale { 0.1 } else { 1.0 };
        if record.stored == Dtype::Float32 {
            return value.to_le_bytes().to_vec();
        }
        stored_bits(record.dtype, value).to_le_bytes().to_vec()
    };
    (0..record.elements()).flat_map(|_| element()).collect()
}

/// The same plan with values that are not quantised stored as they are in memory.
fn native(mut plan: Plan) -> Plan {
    for weight in &mut plan.weights {
        if let Storage::Plain(record) = &mut weight.storage {
            *record = record.clone().native();
        }
    }
    plan
}

/// Writes every record in pieces of 68 bytes, which cross rows, groups and regions.
pub(crate) fn load<S: WeightSink>(sink: &mut S, plan: &Plan)
where
    S::Error: std::fmt::Debug,
{
    for record in plan.weights.iter().flat_map(|weight| weight.storage.records()) {
        for (i, piece) in (0..).zip(content(record).chunks(68)) {
            sink.write(record, i * 68, piece).expect("record is taken");
        }
    }
}

fn executor(gpu: &Gpu, plan: &Plan) -> GpuExecutor {
    executor_of(gpu, plan, CAPACITY)
}

fn executor_of(gpu: &Gpu, plan: &Plan, capacity: Capacity) -> GpuExecutor {
    loaded(block_on(GpuLoader::new(gpu, plan, capacity)).expect("allocates"), plan)
}

/// What a loader makes of the plan's weights.
pub(crate) fn loaded(mut loader: GpuLoader, plan: &Plan) -> GpuExecutor {
    load(&mut loader, plan);
    block_on(loader.finish()).expect("complete")
}

fn reference(plan: &Plan) -> Reference {
    reference_of(plan, CAPACITY)
}

fn reference_of(plan: &Plan, capacity: Capacity) -> Reference {
    let mut reference = Reference::new(plan.clone(), capacity);
    load(&mut reference, plan);
    reference.finish().expect("complete");
    reference
}

fn logits<'a>(executor: &mut GpuExecutor, inputs: impl Into<Inputs<'a>>, past: u32) -> Vec<f32> {
    match block_on(executor.forward(inputs, past, Want::AllLogits)).expect("runs") {
        Output::Logits(logits) => logits,
        other => panic!("{other:?}"),
    }
}

/// What the reference makes of the same.
fn expected<'a>(reference: &mut Reference, inputs: impl Into<Inputs<'a>>, past: u32) -> Vec<f32> {
    match reference.forward(inputs, past, Want::AllLogits).expect("runs") {
        Output::Logits(logits) => logits,
        other => panic!("{other:?}"),
    }
}

/// Rows of the tables that stay on the host.
fn host_rows(plan: &Plan, tokens: &[u32]) -> Vec<Vec<f32>> {
    let tables = plan.host_tables().map(|(table, _)| plan.weight(table));
    let rows = |table: &PlanWeight| {
        let mut packed = PackedWeights::of([table]);
        for record in table.storage.records() {
            packed.write(record, 0, &content(record)).expect("record is taken");
        }
        let mut rows = vec![0.0; tokens.len() * table.columns as usize];
        for (&token, row) in tokens.iter().zip(rows.chunks_mut(table.columns as usize)) {
            packed.row(table, token as usize, row);
        }
        rows
    };
    tables.map(rows).collect()
}

/// Random ids that the plan's table has.
fn tokens(plan: &Plan, count: usize) -> Vec<u32> {
    let mut noise = Noise::of("tokens");
    (0..count).map(|_| noise.bits() % plan.vocab()).collect()
}

/// Feeds calls of these lengths, one after the other, to both and compares every row of the result.
fn agree(what: &str, gpu: &Gpu, plan: &Plan, lengths: &[usize]) {
    agree_within(F32, what, gpu, plan, lengths);
}

fn agree_within(bound: f32, what: &str, gpu: &Gpu, plan: &Plan, lengths: &[usize]) {
    let (mut executor, mut reference) = (executor(gpu, plan), reference(plan));
    let all = tokens(plan, lengths.iter().sum());
    let mut past = 0;
    for &length in lengths {
        let call = &all[past..past + length];
        let start = u32::try_from(past).expect("short");
        let inputs = Inputs { tokens: call, rows: &host_rows(plan, call) };
        let found = logits(&mut executor, inputs, start);
        let expected = expected(&mut reference, inputs, start);
        close_within(bound, &format!("{what}, {length} tokens after {past}"), &found, &expected);
        past += length;
    }
}

/// Bounds of the error of a value, relative to the largest.
const F32: f32 = 2e-5;
const F16: f32 = 2e-3;

fn close(what: &str, found: &[f32], expected: &[f32]) {
    close_within(F32, what, found, expected);
}

fn close_within(bound: f32, what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
    assert!(largest > 0.0 && largest.is_finite(), "{what}: expected something, not {largest}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= bound * largest, "{what}: value {i} is {found}, not {expected}");
    }
}

/// Builds plans of a few steps. The first looks up rows of a random table, the last copies the result out.
struct Bench {
    plan: Plan,
    form: Form,
}

/// How the matrices of a plan are stored.
#[derive(Clone, Copy, Debug)]
struct Form {
    layout: Grouped,
    order: Order,
    /// Of the scales.
    dtype: Dtype,
}

impl Bench {
    fn new(layout: Grouped) -> Self {
        Self::stored(Form { layout, order: Order::Nk, dtype: Dtype::Float16 })
    }

    fn stored(form: Form) -> Self {
        let plan = Plan {
            slots: Vec::new(),
            weights: Vec::new(),
            caches: Vec::new(),
            histories: Vec::new(),
            ropes: Vec::new(),
            steps: Vec::new(),
            logits: SlotId(0),
        };
        Self { plan, form }
    }

    fn slot(&mut self, rows: Rows, width: u32) -> SlotId {
        self.plan.slots.push(Slot { name: "slot", width, rows });
        SlotId(self.plan.slots.len() - 1)
    }

    fn step(&mut self, op: Op) {
        self.plan.steps.push(Step { place: "test".into(), op });
    }

    /// A slot filled with rows of a table of its own.
    fn input(&mut self, width: u32) -> SlotId {
        let table = self.matrix(37, width);
        let out = self.slot(Rows::Tokens, width);
        self.step(Op::Gather { table, out });
        out
    }

    fn matrix(&mut self, rows: u32, columns: u32) -> WeightId {
        let name = format!("w{}", self.plan.weights.len());
        let (height, width) = (u64::from(rows), u64::from(columns));
        let Form { layout, order, dtype } = self.form;
        let shape = |across| match order {
            Order::Nk => [height, across],
            Order::Kn => [across, height],
        };
        let (words, groups) =
            (shape(layout.words_per_row(width)), shape(layout.groups_per_row(width)));
        let storage = Storage::Grouped {
            layout,
            order,
            q_weight: RecordSpec::new(format!("{name}.q_weight"), Dtype::Uint32, words),
            q_scale: RecordSpec::new(format!("{name}.q_scale"), dtype, groups),
        };
        self.plan.weights.push(PlanWeight { name, rows, columns, storage });
        WeightId(self.plan.weights.len() - 1)
    }

    /// A matrix that is not quantised.
    fn plain(&mut self, rows: u32, columns: u32, dtype: Dtype) -> WeightId {
        let name = format!("p{}", self.plan.weights.len());
        let shape = [u64::from(rows), u64::from(columns)];
        let storage = Storage::Plain(RecordSpec::new(name.clone(), dtype, shape));
        self.plan.weights.push(PlanWeight { name, rows, columns, storage });
        WeightId(self.plan.weights.len() - 1)
    }

    fn vector(&mut self, length: u32, dtype: Dtype) -> WeightId {
        let name = format!("v{}", self.plan.weights.len());
        let storage = Storage::Plain(RecordSpec::new(name.clone(), dtype, [u64::from(length)]));
        self.plan.weights.push(PlanWeight { name, rows: length, columns: 1, storage });
        WeightId(self.plan.weights.len() - 1)
    }

    /// Makes `x` the result.
    fn finish(mut self, x: SlotId) -> Plan {
        let width = self.plan.slot(x).width;
        let out = self.slot(Rows::Outputs, width);
        self.step(Op::Copy { x, out });
        self.plan.logits = out;
        self.plan
    }
}
