//! Every way to store a matrix, whole and in pieces, and what goes to the device on the way.

use packlight_formats::digest::sha256;

use super::*;
use crate::gpu::arena::Arena;

/// `x @ weight + bias` of matrices stored like this.
fn matmul(form: Form, rows: u32, columns: u32) -> Plan {
    let mut bench = Bench::stored(form);
    let x = bench.input(columns);
    let weight = bench.matrix(rows, columns);
    let bias = Some(bench.vector(rows, form.dtype));
    let out = bench.slot(Rows::Tokens, rows);
    bench.step(Op::Matmul { x, weight, bias, out });
    bench.finish(out)
}

/// The same of matrices that are not quantised.
fn plain(dtype: Dtype, rows: u32, columns: u32) -> Plan {
    let mut bench = Bench::new(Q4);
    let table = bench.plain(37, columns, dtype);
    let x = bench.slot(Rows::Tokens, columns);
    bench.step(Op::Gather { table, out: x });
    let weight = bench.plain(rows, columns, dtype);
    let out = bench.slot(Rows::Tokens, rows);
    bench.step(Op::Matmul { x, weight, bias: None, out });
    bench.finish(out)
}

/// Rows 12 and 27 of the behaviours: shapes that fill nothing, and ExecuTorch's layout in both nibble orders. Row 14:
/// none of what is fixed (bias, layout) changes with the lengths of the calls.
#[test]
fn every_layout_of_codes() {
    for gpu in floors() {
        let (nk, kn) = (Order::Nk, Order::Kn);
        let (half, brain, single) = (Dtype::Float16, Dtype::Bfloat16, Dtype::Float32);
        let forms = [
            (Q4, nk, brain),
            (Q4, nk, single),
            (Q4, kn, half),
            (Q4, kn, brain),
            (Q3, nk, half),
            (Q3, kn, half),
            (Grouped::mlc(8, 32), nk, half),
            (Grouped::mlc(8, 32), kn, single),
            (Grouped::q4gsw(32, false), nk, single),
            (Grouped::q4gsw(64, true), nk, single),
            (Grouped::q4gsw(128, true), kn, half),
        ];
        for (layout, order, dtype) in forms {
            let form = Form { layout, order, dtype };
            for (rows, columns) in [(52, 160), (131, 71)] {
                let what = format!("{rows} x {columns} {form:?}");
                agree(&what, &gpu, &matmul(form, rows, columns), &[1, 17, 3, 33]);
            }
        }
    }
}

/// More or fewer threads share a row, rows are longer than workgroup memory, and workgroups take rows more than once.
#[test]
fn products_of_every_size() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for (rows, columns) in [(40, 4128), (20_000, 1024), (33_000, 544), (70_001, 96)] {
        let plan =
            matmul(Form { layout: Q4, order: Order::Nk, dtype: Dtype::Float16 }, rows, columns);
        agree(&format!("{rows} x {columns}"), &gpu, &plan, &[1, 3]);
    }
}

/// Row 24: rows that do not fit a binding are divided among several.
#[test]
fn pieces_of_a_table_and_of_a_matrix_equal_the_whole() {
    for gpu in floors() {
        // Rows of 48 bytes of codes: pieces of 6. No slot fits such limits, so only the placement has them.
        let tiny = Caps { binding_bytes: 300, ..Caps::floor() };
        let grouped = |order, dtype, rows| matmul(Form { layout: Q3, order, dtype }, rows, 100);
        let four_bits = Form { layout: Q4, order: Order::Nk, dtype: Dtype::Float16 };
        let plans = [
            (grouped(Order::Nk, Dtype::Float16, 51), [7, 9, 1].to_vec()),
            // Halves of an odd number of transposed rows are widened, those of an even number are not.
            (grouped(Order::Kn, Dtype::Float16, 51), [7, 9, 1].to_vec()),
            (grouped(Order::Kn, Dtype::Float32, 52), [7, 9, 1].to_vec()),
            (matmul(four_bits, 51, 96), [7, 9, 1].to_vec()),
            // Rows of 46 bytes, the last piece ends within a word.
            (plain(Dtype::Bfloat16, 51, 23), [7, 9].to_vec()),
            (native(plain(Dtype::Float32, 51, 23)), [19, 26].to_vec()),
        ];
        for (plan, counts) in plans {
            let placement = Placement::new(&plan, &tiny).expect("places");
            let pieces = |placed: &Placed| match placed {
                Placed::Matrix { pieces, .. } => pieces.len(),
                Placed::Vector(_) | Placed::Host => 1,
            };
            assert_eq!(placement.weights.iter().map(pieces).collect::<Vec<_>>(), counts);
            let mut whole = executor(&gpu, &plan);
            let cut = block_on(GpuLoader::placed(&gpu, &plan, CAPACITY, placement));
            let mut cut = loaded(cut.expect("allocates"), &plan);
            for length in [1, 17] {
                let call = tokens(&plan, length);
                let (cut, whole) = (logits(&mut cut, &call, 0), logits(&mut whole, &call, 0));
                assert_eq!(cut, whole, "{length} tokens");
            }
        }
    }
}

/// Row 4: sizes just below, at and just above what may be in flight, in pieces of any size, arrive as they are.
#[test]
fn what_is_uploaded_arrives() {
    const IN_FLIGHT: u64 = 64 << 10;
    let Some(gpu) = gpu(Caps::floor()) else { return };
    // Rows of one word: `rows` words in all.
    for rows in [16_383, 16_384, 16_385, 100_003] {
        let mut bench = Bench::new(Grouped::mlc(4, 8));
        let weight = bench.matrix(rows, 8);
        let plan = bench.plan;
        let placement = Placement::new(&plan, &gpu.caps()).expect("places");
        let mut arena =
            block_on(gpu.scoped("allocating", || Arena::new(&gpu, &plan, &placement, IN_FLIGHT)))
                .expect("allocates");
        let Placed::Matrix { pieces, .. } = &placement.weights[weight.0] else {
            panic!("a matrix")
        };
        let regions = [Some(pieces[0].codes), pieces[0].scales];
        for (record, region) in plan.weights[0].storage.records().zip(regions.into_iter().flatten())
        {
            let source = content(record);
            // Larger than what may be in flight, odd sizes, and single words.
            let mut offset = 0;
            for length in [4, 70_000, 12, 100_004].into_iter().cycle() {
                let end = source.len().min(offset + length);
                arena.write(&gpu, record, offset as u64, &source[offset..end]).expect("is taken");
                offset = end;
                if offset == source.len() {
                    break;
                }
            }
            let binding = arena.binding(region);
            let mut readback = readback::Readback::default();
            let result = readback.take(&gpu, region.bytes);
            let mut encoder =
                gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(binding.buffer, binding.offset, &result, 0, region.bytes);
            gpu.queue.submit([encoder.finish()]);
            let found: Vec<u8> =
                block_on(readback.read(&gpu, result, region.bytes)).expect("reads");
            assert_eq!(
                sha256(&found[..source.len()]),
                sha256(&source),
                "{}, {rows} rows",
                record.name
            );
        }
        arena.finish().expect("complete");
    }
}
