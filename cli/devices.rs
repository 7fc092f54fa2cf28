//! `packlight devices`: which adapters there are.

use packlight_runner::gpu::adapters;

use crate::args::DevicesArgs;

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<bool> {
    let adapters = pollster::block_on(adapters());
    if args.json {
        println!("{}", serde_json::to_string(&adapters)?);
        return Ok(true);
    }
    for (i, adapter) in adapters.iter().enumerate() {
        let chosen = if i == 0 { "* " } else { "  " };
        println!("{chosen}{adapter} ({}, {})", adapter.device_type, adapter.driver);
    }
    println!("{}CPU reference", if adapters.is_empty() { "* " } else { "  " });
    if adapters.is_empty() {
        eprintln!("hint: install a Vulkan driver (Debian: mesa-vulkan-drivers) to run on WebGPU");
    }
    Ok(true)
}
