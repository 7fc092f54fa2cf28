//! The table against the WGSL itself, without a GPU.

use std::collections::BTreeMap;

use naga::{AddressSpace, Module, StorageAccess, TypeInner};

use super::*;

fn parse(kernel: &Kernel) -> Module {
    let source = kernel.source.concat();
    naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(&source, kernel.name)))
}

#[test]
fn kernels_are_valid_wgsl_without_extensions() {
    for kernel in KERNELS {
        let module = parse(kernel);
        let flags = naga::valid::ValidationFlags::all();
        // naga's name for `unpack2x16float`, which WGSL has everywhere.
        let capabilities = naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let verdict = naga::valid::Validator::new(flags, capabilities).validate(&module);
        assert!(verdict.is_ok(), "{}: {verdict:#?}", kernel.name);
        let source = kernel.source.concat();
        for word in ["enable ", "subgroup", "f16>", "immediate"] {
            assert!(!source.contains(word), "{} has `{word}`", kernel.name);
        }
    }
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
        assert_eq!(required, kernel.overrides, "overrides of {}", kernel.name);
    }
}

#[test]
fn the_table_says_what_a_workgroup_takes() {
    for kernel in KERNELS {
        let module = parse(kernel);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("sizes are known");
        let workgroup = module
            .global_variables
            .iter()
            .filter(|(_, variable)| variable.space == AddressSpace::WorkGroup);
        let bytes: u32 = workgroup.map(|(_, variable)| layouter[variable.ty].size).sum();
        assert_eq!(bytes, kernel.workgroup_bytes, "{}", kernel.name);

        let [entry] = &module.entry_points[..] else { panic!("{}: one entry", kernel.name) };
        assert_eq!(entry.name, kernel.name);
        let size = entry.workgroup_size;
        assert_eq!(size[0] * size[1] * size[2], kernel.invocations, "{}", kernel.name);
    }
}

#[test]
fn every_operation_has_a_kernel_that_needs_nothing() {
    for kernel in KERNELS {
        let mut same = KERNELS.iter().filter(|other| other.op == kernel.op);
        assert!(same.any(|other| other.fits(&Caps::floor())), "{:?}", kernel.op);
    }
}

#[test]
fn work_follows_the_live_rows() {
    let live = |tokens, outputs| Live { tokens, past: 0, outputs };
    let tiles = Work { rows: Rows::Tokens, tile: 32, groups: 3, applies: 5..=u32::MAX };
    assert_eq!(tiles.workgroups(live(4, 1)), None);
    assert_eq!(tiles.workgroups(live(5, 1)), Some(3));
    assert_eq!(tiles.workgroups(live(33, 1)), Some(6));
    let last = Work::per_column(Rows::Outputs, 257);
    assert_eq!(last.workgroups(live(7, 0)), None);
    assert_eq!(last.workgroups(live(7, 7)), Some(14));
}
