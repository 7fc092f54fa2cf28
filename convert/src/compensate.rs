//! Codes chosen by what is known of a matrix's inputs, kept in a file until it is their turn to be emitted.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use packlight_formats::calibration::Hessian;
use packlight_formats::quant::codes::gptq::Feedback;
use packlight_formats::quant::{Grid, Storage};
use rayon::prelude::*;

use crate::band::{Block, evaluate, release};
use crate::check::{Conversion, PlannedWeight};
use crate::error::ConvertError;
use crate::stream::StreamOptions;

/// Rows that a thread quantises at a time.
const ROWS: u64 = 32;

/// Codes and scales of some weights, row after row, in a nameless file.
#[derive(Debug)]
pub struct Compensated {
    file: Mutex<File>,
    /// By the weight's name: where its codes start, and its scales.
    starts: HashMap<String, [u64; 2]>,
    end: u64,
}

/// Codes, packed, and scales of some rows.
pub(crate) struct Chosen {
    pub(crate) words: Vec<u32>,
    pub(crate) scales: Vec<f32>,
}

/// Quantises weights one by one, as a calibration runs into them.
#[derive(Debug)]
pub struct Compensator<'a> {
    conversion: &'a Conversion<'a>,
    options: StreamOptions,
    compensated: Compensated,
}

impl<'a> Compensator<'a> {
    /// `folder` must have room for all codes.
    pub fn new(
        conversion: &'a Conversion<'a>,
        options: StreamOptions,
        folder: &Path,
    ) -> Result<Self, ConvertError> {
        let scratch = |source| ConvertError::Scratch { folder: folder.into(), source };
        let file = tempfile::tempfile_in(folder).map_err(scratch)?;
        let compensated = Compensated { file: Mutex::new(file), starts: HashMap::new(), end: 0 };
        Ok(Self { conversion, options, compensated })
    }

    /// The bytes of a weight's records, its codes chosen for its inputs where those are known.
    pub fn records(
        &mut self,
        weight: &str,
        inputs: Option<&Hessian>,
    ) -> Result<Vec<Vec<u8>>, ConvertError> {
        let conversion = self.conversion;
        let place = conversion.weights.iter().position(|planned| planned.weight.name == weight);
        // The plan that is run is lowered from the description that is converted.
        let Some(index) = place else { return Ok(Vec::new()) };
        if let Some(inputs) = inputs {
            self.compensate(&conversion.weights[index], inputs)?;
        }
        conversion.records_of(index, self.options, &self.compensated)
    }

    fn compensate(
        &mut self,
        planned: &PlannedWeight,
        inputs: &Hessian,
    ) -> Result<(), ConvertError> {
        let PlannedWeight { weight, scheme, storage } = planned;
        let Storage::Grouped { layout, .. } = storage else { return Ok(()) };
        let Some(feedback) = Feedback::of(inputs, *layout) else { return Ok(()) };
        let (rows, columns) = (weight.rows(), weight.columns());
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let words_per_row = size(layout.words_per_row(columns));
        let scales_per_row = size(layout.groups_per_row(columns));
        let mut words = vec![0u32; size(rows) * words_per_row];
        let mut scales = vec![0f32; size(rows) * scales_per_row];
        let grid = Grid { layout: *layout, dtype: scheme.dtype, rounding: self.options.rounding };
        let (checkpoint, allow) = (self.conversion.checkpoint, self.options.allow_non_finite);
        let bands = words
            .par_chunks_mut(size(ROWS) * words_per_row)
            .zip(scales.par_chunks_mut(size(ROWS) * scales_per_row));
        bands.enumerate().try_for_each(|(i, (words, scales))| {
            let first = i as u64 * ROWS;
            let block = Block { rows: first..(first + ROWS).min(rows), columns: 0..columns };
            let values = evaluate(checkpoint, weight, &block, scheme.dtype, allow)?;
            release(checkpoint, weight, &block.rows);
            grid.encode_compensated(&values, &feedback, words, scales);
            Ok::<_, ConvertError>(())
        })?;
        self.compensated.keep(&weight.name, &words, &scales)
    }

    /// What has been quantised.
    pub fn finish(self) -> Compensated {
        self.compensated
    }
}

impl Compensated {
    fn keep(&mut self, weight: &str, words: &[u32], scales: &[f32]) -> Result<(), ConvertError> {
        let file = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.end))?;
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        file.write_all(&words)?;
        file.write_all(&scales)?;
        let first_scale = self.end + words.len() as u64;
        self.starts.insert(weight.into(), [self.end, first_scale]);
        self.end = first_scale + scales.len() as u64;
        Ok(())
    }

    /// Codes and scales of a block of a weight, if it is among those quantised. A block starts at a whole group.
    pub(crate) fn block(
        &self,
        PlannedWeight { weight, storage, .. }: &PlannedWeight,
        block: &Block,
    ) -> Result<Option<Chosen>, ConvertError> {
        let Storage::Grouped { layout, .. } = storage else { return Ok(None) };
        let Some([words, scales]) = self.starts.get(&weight.name) else { return Ok(None) };
        let columns = weight.columns();
        let group = block.columns.start / u64::from(layout.group);
        let groups = layout.groups_per_row(block.width());
        let per_group = u64::from(layout.words_per_group());
        let of_words = group * per_group..(group + groups) * per_group;
        let words = self.rows(*words, layout.words_per_row(columns), block, of_words)?;
        let of_scales = group..group + groups;
        let scales = self.rows(*scales, layout.groups_per_row(columns), block, of_scales)?;
        Ok(Some(Chosen {
            words: words.into_iter().map(u32::from_le_bytes).collect(),
            scales: scales.into_iter().map(f32::from_le_bytes).collect(),
        }))
    }

    /// Some elements of some rows of a matrix of four-byte elements.
    fn rows(
        &self,
        start: u64,
        width: u64,
        block: &Block,
        part: std::ops::Range<u64>,
    ) -> Result<Vec<[u8; 4]>, ConvertError> {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let length = part.end - part.start;
        // Rows that are wanted whole are neighbours in the file.
        let (runs, length) =
            if length == width { (1, length * block.height()) } else { (block.height(), length) };
        let mut bytes = vec![0; size(4 * runs * length)];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, bytes) in (block.rows.start..).zip(bytes.chunks_mut(size(4 * length).max(1))) {
            file.seek(SeekFrom::Start(start + 4 * (row * width + part.start)))?;
            file.read_exact(bytes)?;
        }
        Ok(bytes.as_chunks().0.to_vec())
    }
}
