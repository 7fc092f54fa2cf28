//! The table against the WGSL itself, without a GPU.

use std::collections::{BTreeMap, BTreeSet};

use naga::back::pipeline_constants::process_overrides;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, StorageAccess, TypeInner};

use super::*;
use crate::executor::Live;

fn parse(kernel: &Kernel) -> Module {
    let source = kernel.source.concat();
    naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(&source, kernel.name)))
}

fn validated(kernel: &Kernel, module: &Module) -> ModuleInfo {
    // naga's name for `unpack2x16float`, which WGSL has everywhere.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    for need in kernel.needs {
        capabilities |= match need {
            Need::F16 => Capabilities::SHADER_FLOAT16,
            Need::Subgroups => Capabilities::SUBGROUP,
            Need::CooperativeMatrices => Capabilities::COOPERATIVE_MATRIX,
            Need::Software => continue,
        };
    }
    let verdict = Validator::new(ValidationFlags::all(), capabilities).validate(module);
    verdict.unwrap_or_else(|error| panic!("{}: {error:#?}", kernel.name))
}

/// The module of a pipeline: with values for its override constants.
fn specialised(kernel: &Kernel, threads: u32) -> Module {
    let module = parse(kernel);
    let info = validated(kernel, &module);
    let value = |name: &str| match name {
        "BITS" => 4.0,
        "GROUP" => 32.0,
        "ZERO" => 7.0,
        "LANES" | "TILE" | "TOKENS" => 64.0,
        // The widest head, in fours.
        "WIDTH" => 128.0,
        _ => 0.0,
    };
    let constants = kernel.overrides.iter().map(|name| ((*name).to_owned(), value(name)));
    let constants = constants.chain([("THREADS".to_owned(), f64::from(threads))]).collect();
    let entry = Some((naga::ShaderStage::Compute, kernel.entry));
    process_overrides(&module, &info, entry, &constants)
        .expect("constants are right")
        .0
        .into_owned()
}

/// Bytes of `var<workgroup>`.
fn workgroup_bytes(module: &Module) -> u32 {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("sizes are known");
    let variables = module.global_variables.iter().map(|(_, variable)| variable);
    let workgroup = variables.filter(|variable| variable.space == AddressSpace::WorkGroup);
    workgroup.map(|variable| layouter[variable.ty].size).sum()
}

/// Row 1 of the behaviours: what is not everywhere is in no kernel but those that say so.
#[test]
fn kernels_use_what_they_say_they_need_and_nothing_else() {
    for kernel in KERNELS {
        validated(kernel, &parse(kernel));
        let source = kernel.source.concat();
        let has = |words: &[&str]| words.iter().any(|word| source.contains(word));
        assert_eq!(has(&["subgroup"]), kernel.needs.contains(&Need::Subgroups), "{}", kernel.name);
        assert_eq!(
            has(&["f16>", "enable f16"]),
            kernel.needs.contains(&Need::F16),
            "{}",
            kernel.name
        );
        assert!(!has(&["immediate", "enable subgroups"]), "{}", kernel.name);
    }
    assert!(KERNELS.iter().any(|kernel| kernel.needs.contains(&Need::Subgroups)));
    for caps in [Caps::floor(), Caps::auto()] {
        for choice in choices(&caps) {
            if choice.op.is_optional() {
                continue;
            }
            let chosen = choice.chosen.expect("every operation has a kernel");
            let is_plain = chosen.needs.iter().all(|need| *need == Need::Software);
            assert!(is_plain, "{} is chosen by default", chosen.name);
        }
    }
}

#[test]
fn names_are_those_of_one_kernel() {
    let names: BTreeSet<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
    assert_eq!(names.len(), KERNELS.len());
}

#[test]
fn the_table_says_what_the_source_binds() {
    for kernel in KERNELS {
        let module = parse(kernel);
        let mut bindings = BTreeMap::new();
        for (_, variable) in module.global_variables.iter() {
            if let Some(binding) = variable.binding {
                assert_eq!(binding.group, 0);
                bindings.insert(binding.binding as usize, variable);
            }
        }
        let count = 2 + kernel.buffers.len();
        assert!(bindings.keys().copied().eq(0..count), "bindings of {}", kernel.name);
        for (&i, variable) in &bindings {
            let access = i.checked_sub(2).map(|i| kernel.buffers[i]);
            let expected = match access {
                None => AddressSpace::Uniform,
                Some(Read) => AddressSpace::Storage { access: StorageAccess::LOAD },
                Some(ReadWrite) => {
                    AddressSpace::Storage { access: StorageAccess::LOAD | StorageAccess::STORE }
                }
            };
            assert_eq!(variable.space, expected, "binding {i} of {}", kernel.name);
        }
        let TypeInner::Struct { members, span } = &module.types[bindings[&1].ty].inner else {
            panic!("args of {} are no struct", kernel.name);
        };
        let names: Vec<_> = members.iter().filter_map(|member| member.name.as_deref()).collect();
        assert_eq!(names, kernel.args, "args of {}", kernel.name);
        assert_eq!(*span as usize, 4 * kernel.args.len(), "args of {}", kernel.name);

        let required = module.overrides.iter().filter(|(_, value)| value.init.is_none());
        let required: Vec<_> = required.filter_map(|(_, value)| value.name.as_deref()).collect();
        // THREADS of the prelude is given to every kernel.
        let expected: Vec<_> = ["THREADS"].iter().chain(kernel.overrides).copied().collect();
        let (required, expected): (BTreeSet<_>, BTreeSet<_>) =
            (required.into_iter().collect(), expected.into_iter().collect());
        assert_eq!(required, expected, "overrides of {}", kernel.name);
    }
}

/// Row 11: what naga lays out is what the table says, and within WebGPU's floor. Row 23: fewer threads take no more.
#[test]
fn the_table_says_what_a_workgroup_takes() {
    for kernel in KERNELS {
        let most = kernel.threads(&Caps::auto());
        assert_eq!(most, kernel.invocations, "{}: a power of two", kernel.name);
        assert_eq!(most, kernel.threads(&Caps::floor()), "{}", kernel.name);
        let mut threads = most;
        loop {
            let module = specialised(kernel, threads);
            let bytes = workgroup_bytes(&module);
            if threads == most {
                assert_eq!(bytes, kernel.workgroup_bytes, "{}", kernel.name);
            }
            assert!(bytes <= kernel.workgroup_bytes, "{} with {threads}", kernel.name);
            // Those who ask for cooperative matrices have more than WebGPU promises.
            let is_floor = !kernel.needs.contains(&Need::CooperativeMatrices);
            assert!(!is_floor || bytes <= Caps::floor().workgroup_bytes, "{}", kernel.name);
            let [entry] = &module.entry_points[..] else { panic!("{}: one entry", kernel.name) };
            assert_eq!(entry.name, kernel.entry);
            assert_eq!(entry.workgroup_size, [threads, 1, 1], "{}", kernel.name);
            threads /= 2;
            if threads < 64 {
                break;
            }
        }
    }
}

#[test]
fn every_operation_has_a_kernel_that_needs_nothing() {
    for kernel in KERNELS.iter().filter(|kernel| !kernel.op.is_optional()) {
        let last = KERNELS.iter().rfind(|other| other.op == kernel.op).expect("itself at least");
        assert!(last.needs.is_empty() && last.fits(&Caps::floor()).is_ok(), "{:?}", kernel.op);
    }
}

#[test]
fn work_follows_the_live_rows() {
    let live = |tokens, outputs| Live { tokens, past: 0, outputs };
    let tiles = Work { tile: 32, applies: 5..=u32::MAX, ..Work::per_row(Rows::Tokens, 3) };
    assert_eq!(tiles.workgroups(live(4, 1)), None);
    assert_eq!(tiles.workgroups(live(5, 1)), Some(3));
    assert_eq!(tiles.workgroups(live(33, 1)), Some(6));
    let last = Work::per_row(Rows::Outputs, 2);
    assert_eq!(last.workgroups(live(7, 0)), None);
    assert_eq!(last.workgroups(live(7, 7)), Some(14));
}
