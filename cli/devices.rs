//! `packlight devices`: which adapters there are, what they have, and which kernels they would be given.

use std::fmt::Write as _;

use indicatif::BinaryBytes;
use packlight_runner::gpu::{Caps, Feature, Listed, SubgroupSizes, adapters};
use packlight_runner::kernels::{Choice, choices};
use serde_json::{Value, json};

use crate::args::DevicesArgs;

pub(crate) fn run(args: &DevicesArgs) {
    let adapters = pollster::block_on(adapters());
    let ceiling = args.caps.caps;
    if args.json {
        let adapters: Vec<_> = adapters.iter().map(|adapter| report(adapter, ceiling)).collect();
        println!("{}", json!(adapters));
        return;
    }
    print!("{}", text(&adapters, ceiling));
    if adapters.is_empty() {
        eprintln!("hint: install a Vulkan driver (Debian: mesa-vulkan-drivers) to run on WebGPU");
    }
}

fn text(adapters: &[Listed], ceiling: Caps) -> String {
    let mut out = String::new();
    for (i, listed) in adapters.iter().enumerate() {
        let chosen = if i == 0 { "*" } else { " " };
        let _ = writeln!(out, "{chosen} {}", listed.adapter);
        for (name, value) in properties(listed) {
            let _ = writeln!(out, "    {name:<22} {value}");
        }
        out += "  kernels\n";
        for choice in choices(&listed.offers.capped(ceiling)) {
            let chosen = choice.chosen.map_or("none", |kernel| kernel.name);
            let _ = writeln!(out, "    {:<22} {chosen}", choice.op.name());
            for (kernel, why) in &choice.refused {
                let _ = writeln!(out, "    {:<22}   not `{}`: {why}", "", kernel.name);
            }
        }
    }
    let chosen = if adapters.is_empty() { "*" } else { " " };
    let _ = writeln!(out, "{chosen} CPU reference");
    out
}

fn properties(listed: &Listed) -> Vec<(&'static str, String)> {
    let yes = |yes| if yes { "yes" } else { "no" }.to_owned();
    let Caps {
        binding_bytes,
        buffer_bytes,
        workgroup_bytes,
        invocations,
        storage_buffers,
        groups_per_dimension,
        ..
    } = listed.offers;
    let mut properties = vec![
        ("f16", yes(listed.offers.f16.is_on())),
        (
            "subgroups",
            match listed.offers.subgroups {
                Feature::On(SubgroupSizes { min, max }) if min == max => format!("{min} threads"),
                Feature::On(SubgroupSizes { min, max }) => format!("{min} to {max} threads"),
                Feature::Off | Feature::Missing => yes(false),
            },
        ),
        ("timestamps", yes(listed.timestamps)),
        ("cooperative matrices", listed.cooperative_matrices.join(", ")),
        ("binding", BinaryBytes(binding_bytes).to_string()),
        ("buffer", BinaryBytes(buffer_bytes).to_string()),
        ("workgroup", format!("{invocations} threads, {}", BinaryBytes(workgroup_bytes.into()))),
        ("dispatch", format!("{groups_per_dimension} workgroups per dimension")),
        ("storage buffers", storage_buffers.to_string()),
    ];
    properties.retain(|(_, value)| !value.is_empty());
    properties
}

fn report(listed: &Listed, ceiling: Caps) -> Value {
    let Listed { adapter, offers, timestamps, cooperative_matrices } = listed;
    let subgroups = match offers.subgroups {
        Feature::On(SubgroupSizes { min, max }) => json!({ "min": min, "max": max }),
        Feature::Off | Feature::Missing => Value::Null,
    };
    let kernels = choices(&offers.capped(ceiling));
    json!({
        "name": adapter.name,
        "backend": adapter.backend,
        "driver": adapter.driver,
        "device_type": adapter.device_type,
        "features": {
            "f16": offers.f16.is_on(),
            "subgroups": subgroups,
            "timestamps": timestamps,
            "cooperative_matrices": cooperative_matrices,
        },
        "limits": {
            "binding_bytes": offers.binding_bytes,
            "buffer_bytes": offers.buffer_bytes,
            "workgroup_bytes": offers.workgroup_bytes,
            "invocations": offers.invocations,
            "storage_buffers": offers.storage_buffers,
            "groups_per_dimension": offers.groups_per_dimension,
            "offset_alignment": offers.offset_alignment,
        },
        "kernels": kernels.iter().map(kernel_report).collect::<Vec<_>>(),
    })
}

fn kernel_report(choice: &Choice) -> Value {
    let refused = choice.refused.iter();
    json!({
        "op": choice.op.name(),
        "kernel": choice.chosen.map(|kernel| kernel.name),
        "refused": refused
            .map(|(kernel, why)| json!({ "kernel": kernel.name, "why": why.to_string() }))
            .collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use packlight_runner::gpu::Adapter;

    use super::*;

    fn adapter(name: &str, offers: Caps) -> Listed {
        let adapter = Adapter {
            name: name.into(),
            backend: "vulkan".into(),
            driver: "driver 1.2".into(),
            device_type: "discrete GPU",
        };
        Listed { adapter, offers, timestamps: true, cooperative_matrices: Vec::new() }
    }

    #[test]
    fn devices_that_nobody_here_has() {
        let sizes = SubgroupSizes { min: 32, max: 64 };
        let rich = Caps {
            binding_bytes: 2 << 30,
            buffer_bytes: 4 << 30,
            workgroup_bytes: 48 << 10,
            invocations: 1024,
            f16: Feature::On(()),
            subgroups: Feature::On(sizes),
            ..Caps::floor()
        };
        let bare = Caps { f16: Feature::Missing, subgroups: Feature::Missing, ..Caps::floor() };
        let matrices = vec!["f16 16x16x16 f32".to_owned()];
        let adapters = [
            Listed { cooperative_matrices: matrices, ..adapter("Rich", rich) },
            Listed { timestamps: false, ..adapter("Bare", bare) },
        ];
        let asked = "+f16,+subgroups".parse().expect("a list");
        assert_snapshot!("devices_auto", text(&adapters[..1], Caps::auto()));
        assert_snapshot!("devices_asked", text(&adapters, asked));
        assert_snapshot!("devices_none", text(&[], asked));
        let json = serde_json::to_string_pretty(&report(&adapters[0], asked)).expect("json");
        assert_snapshot!("devices_json", json);
    }
}
