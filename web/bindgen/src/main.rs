//! `bindgen FILE.wasm FOLDER`: writes FOLDER/packlight.js and the module that it loads, packlight_bg.wasm.

use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(module), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: bindgen FILE.wasm FOLDER".into());
    };
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).out_name("packlight").typescript(false);
    // Without a bundler there is nothing that could find the module for us; the page says where it is.
    bindgen
        .web(true)?
        .omit_default_module_path(false)
        .remove_name_section(true)
        .remove_producers_section(true);
    bindgen.generate(folder)?;
    Ok(())
}
