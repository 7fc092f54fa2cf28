//! The same values give the same bundle, whichever type the checkpoint holds them in.

use std::collections::BTreeMap;
use std::path::Path;

use packlight_formats::fp8::E4M3;
use packlight_formats::manifest::TensorCache;
use packlight_formats::manifest::tensor_cache::ShardRecord;
use safetensors::tensor::Dtype;
use serde_json::json;

use crate::packlight;
use crate::support::{Tensor, converted, copy, edit_json, edit_tensors, fixture};

const BLOCK: [usize; 2] = [16, 48];

/// Records by name: their order follows that of the tensors in the file.
fn records(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let (_folder, bundle) = converted(checkpoint);
    let bytes = fs_err::read(bundle.join("params_shard_0.bin")).unwrap();
    let cache =
        TensorCache::parse(&fs_err::read(bundle.join("tensor-cache.json")).unwrap()).unwrap();
    let slice = |record: &ShardRecord| {
        let start = usize::try_from(record.byte_offset).unwrap();
        bytes[start..start + usize::try_from(record.nbytes).unwrap()].to_vec()
    };
    cache.records[0].records.iter().map(|record| (record.name.clone(), slice(record))).collect()
}

fn edited(edit: impl FnOnce(&mut Vec<Tensor>)) -> tempfile::TempDir {
    let checkpoint = copy(&fixture("llama"));
    edit_tensors(&checkpoint.path().join("model.safetensors"), edit);
    checkpoint
}

fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| u16::try_from(x.to_bits() >> 16).unwrap().to_le_bytes()).collect()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let halves = tensor.bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])));
    halves.map(|bits| f32::from_bits(bits << 16)).collect()
}

#[test]
fn f32_and_f16_sources_equal_bf16() {
    let expected = records(&fixture("llama"));
    let f32s = edited(|tensors| {
        for tensor in tensors {
            tensor.bytes = values(tensor).iter().flat_map(|x| x.to_le_bytes()).collect();
            tensor.dtype = Dtype::F32;
        }
    });
    assert!(records(f32s.path()) == expected, "f32");
    let f16s = edited(|tensors| {
        for tensor in tensors {
            tensor.bytes =
                values(tensor).iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
            tensor.dtype = Dtype::F16;
        }
    });
    assert!(records(f16s.path()) == expected, "f16");
}

/// Values of fp8 bytes times powers of two are exact in bf16, so both spellings must give the same bundle.
fn spelled_both_ways(per_block: bool) -> [tempfile::TempDir; 2] {
    let byte = |i: usize| {
        u8::try_from((i * 37 + i / 61) % 0x7F).unwrap() | if i.is_multiple_of(3) { 0x80 } else { 0 }
    };
    let is_projection = |tensor: &Tensor| tensor.name.contains("_proj.");
    let block =
        |tensor: &Tensor| if per_block { BLOCK } else { [tensor.shape[0], tensor.shape[1]] };
    let scale = |block: usize| 2f32.powi(i32::try_from(block % 5).unwrap() - 12);
    let blocks_wide = |tensor: &Tensor| tensor.shape[1].div_ceil(block(tensor)[1]);
    let fp8 = edited(|tensors| {
        let mut scales = Vec::new();
        for tensor in tensors.iter_mut().filter(|tensor| is_projection(tensor)) {
            tensor.bytes = (0..tensor.shape[0] * tensor.shape[1]).map(byte).collect();
            tensor.dtype = Dtype::F8_E4M3;
            let shape = [tensor.shape[0].div_ceil(block(tensor)[0]), blocks_wide(tensor)];
            let bytes = (0..shape[0] * shape[1]).flat_map(|i| scale(i).to_le_bytes()).collect();
            let shape = if per_block { shape.to_vec() } else { Vec::new() };
            scales.push(Tensor {
                name: format!("{}_scale_inv", tensor.name),
                dtype: Dtype::F32,
                shape,
                bytes,
            });
        }
        tensors.extend(scales);
    });
    edit_json(&fp8.path().join("config.json"), |config| {
        config["quantization_config"] =
            json!({ "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3" });
        if per_block {
            config["quantization_config"]["weight_block_size"] = json!(BLOCK);
        }
    });
    let plain = edited(|tensors| {
        for tensor in tensors.iter_mut().filter(|tensor| is_projection(tensor)) {
            let value = |i: usize| {
                let (row, column) = (i / tensor.shape[1], i % tensor.shape[1]);
                let [height, width] = block(tensor);
                E4M3[usize::from(byte(i))]
                    * scale(row / height * blocks_wide(tensor) + column / width)
            };
            let values: Vec<f32> = (0..tensor.shape[0] * tensor.shape[1]).map(value).collect();
            tensor.bytes = bf16(&values);
        }
    });
    [fp8, plain]
}

#[test]
fn fp8_is_dequantised_by_block_and_by_tensor() {
    for per_block in [true, false] {
        let [fp8, plain] = spelled_both_ways(per_block);
        assert!(records(fp8.path()) == records(plain.path()), "per block: {per_block}");
    }
}

#[test]
fn fp8_that_does_not_add_up() {
    let [fp8, _] = spelled_both_ways(true);
    let path = fp8.path().join("model.safetensors");
    edit_tensors(&path, |tensors| {
        tensors.retain(|tensor| tensor.name != "model.layers.0.mlp.up_proj.weight_scale_inv");
        let scales = tensors
            .iter_mut()
            .find(|t| t.name == "model.layers.1.mlp.up_proj.weight_scale_inv")
            .unwrap();
        (scales.shape, scales.bytes) = (vec![2, 2], vec![0; 16]);
    });
    let error = packlight!("convert", fp8.path(), "--dry-run").fails(2);
    for words in [
        "`model.layers.0.mlp.up_proj.weight_scale_inv` are missing",
        "up_proj.weight_scale_inv` in `model.safetensors` is [2, 2]",
    ] {
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    edit_json(&fp8.path().join("config.json"), |config| {
        config["quantization_config"]["quant_method"] = json!("gptq");
    });
    let error = packlight!("convert", fp8.path(), "--dry-run").fails(2);
    assert!(
        error.contains("quantization_config.quant_method") && error.contains("gptq"),
        "{error}"
    );
}
