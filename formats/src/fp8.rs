//! fp8 checkpoints: weights in e4m3 with scales beside them (transformers/integrations/finegrained_fp8.py).

use crate::config::{Config, ConfigError};

/// The tensor that holds the scales of `X.weight` is called `X.weight` with this behind it.
pub const SCALE_SUFFIX: &str = "_scale_inv";

/// How the scales of an fp8 checkpoint lie over its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scales {
    /// One for the whole weight.
    PerTensor,
    /// One for each block of `[rows, columns]`, those at the edges smaller.
    PerBlock([u64; 2]),
}

impl Fp8Scales {
    /// From `quantization_config`; `None` where the checkpoint is not quantised.
    pub fn read(config: &Config<'_>) -> Result<Option<Self>, ConfigError> {
        let Some(section) = config.section("quantization_config")? else { return Ok(None) };
        if section.text("quant_method")? != Some("fp8") {
            return Err(
                section.unsupported("quant_method", "fp8, or a checkpoint that is not quantised")
            );
        }
        if !matches!(section.text("fmt")?, None | Some("e4m3")) {
            return Err(section.unsupported("fmt", "e4m3"));
        }
        if !matches!(section.text("scale_fmt")?, None | Some("float")) {
            return Err(section.unsupported("scale_fmt", "float"));
        }
        if !matches!(section.text("expert_dtype")?, None | Some("fp8")) {
            return Err(section.unsupported("expert_dtype", "fp8"));
        }
        // Activations stay in f32 here, weights are always dequantised, and which modules are fp8 shows in the tensors'
        // own dtypes.
        section.without_effect(&[
            "activation_scheme",
            "dequantize",
            "ignored_layers",
            "modules_to_convert",
            "modules_to_not_convert",
        ]);
        let block = section.numbers("weight_block_size")?;
        section.all_read("fp8")?;
        match block.as_deref() {
            None => Ok(Some(Self::PerTensor)),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be small counts"
            )]
            Some(&[rows, columns]) if is_count(rows) && is_count(columns) => {
                Ok(Some(Self::PerBlock([rows as u64, columns as u64])))
            }
            _ => Err(section.unsupported("weight_block_size", "two positive numbers")),
        }
    }

    /// The shape of the scales of a weight `[rows, columns]`. A single scale may also be written as `[]`.
    pub fn shape(self, weight: [u64; 2]) -> [u64; 2] {
        match self {
            Self::PerTensor => [1, 1],
            Self::PerBlock([rows, columns]) => {
                [weight[0].div_ceil(rows), weight[1].div_ceil(columns)]
            }
        }
    }

    /// Rows and columns that share a scale, of a weight `[rows, columns]`.
    pub fn block(self, weight: [u64; 2]) -> [u64; 2] {
        match self {
            Self::PerTensor => weight.map(|dim| dim.max(1)),
            Self::PerBlock(block) => block,
        }
    }
}

fn is_count(number: f64) -> bool {
    number.fract() == 0.0 && (1.0..=65536.0).contains(&number)
}

/// The value of every e4m3fn byte (Micikevicius et al. 2022): no infinities, NaN at 0x7f and 0xff.
pub const E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (exponent, mantissa) = ((byte >> 3) & 15, byte & 7);
        // Units of 2^-9, the smallest subnormal: exact in u32, and in f32.
        let units = if exponent == 0 { mantissa } else { (8 + mantissa) << (exponent - 1) };
        #[expect(clippy::cast_precision_loss, reason = "four significant bits")]
        let magnitude = if byte & 0x7f == 0x7f { f32::NAN } else { units as f32 / 512.0 };
        table[byte] = if byte & 0x80 == 0 { magnitude } else { -magnitude };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::arch;

    #[test]
    fn e4m3_values() {
        let cases = [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
        ];
        for (byte, value) in cases.into_iter().chain([(0x3f, 1.875), (0x7e, 448.0), (0x40, 2.0)]) {
            assert_eq!(E4M3[byte].to_bits(), f32::to_bits(value), "{byte:#x}");
            assert_eq!(E4M3[byte | 0x80].to_bits(), f32::to_bits(-value), "{byte:#x}");
        }
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
    }

    /// `FineGrainedFP8Config().to_dict()` of transformers 5.
    #[test]
    fn fp8_settings_are_read_by_value() {
        let usual = json!({
            "quant_method": "fp8", "modules_to_not_convert": null, "modules_to_convert": null, "expert_dtype": "fp8",
            "activation_scheme": "dynamic", "weight_block_size": [128, 128], "dequantize": false, "scale_fmt": "float",
        });
        let read =
            |section: &Value| arch::fp8_scales(&json!({ "quantization_config": section }), &[]);
        assert_eq!(read(&usual), Ok(Some(Fp8Scales::PerBlock([128, 128]))));
        for (key, value) in
            [("scale_fmt", "ue8m0"), ("expert_dtype", "fp4"), ("quant_method", "awq")]
        {
            let mut changed = usual.clone();
            changed[key] = value.into();
            let error = read(&changed).unwrap_err();
            assert!(error.to_string().contains(value), "{error}");
        }
    }
}
