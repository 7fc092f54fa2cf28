//! Bundles of any records, cut in any way, through the crate's public face.

use std::path::Path;

use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::{Metadata, TENSOR_CACHE};
use packlight_formats::manifest::{Names, Packlight, TensorCache};
use packlight_formats::{Dtype, RecordSpec};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::contents::shard_name;
use crate::*;
use packlight_formats::manifest::tensor_cache::{Shard, ShardRecord};

/// Records of these sizes in half-precision elements, and their shards.
struct Input {
    records: Vec<RecordSpec>,
    shards: Vec<ShardPlan>,
    sidecars: Vec<Sidecar>,
}

impl Input {
    fn new(elements: &[u64], shard_bytes: u64) -> Self {
        let spec = |(i, &n): (usize, &u64)| RecordSpec::new(format!("r{i}"), Dtype::Float16, [n]);
        let records: Vec<RecordSpec> = elements.iter().enumerate().map(spec).collect();
        let shards = plan_shards(&records, shard_bytes);
        let text = serde_json::to_vec_pretty(&(0..400).collect::<Vec<u32>>()).unwrap();
        let sidecars = vec![
            Sidecar { path: "tokenizer.json".into(), bytes: text },
            Sidecar { path: "empty.txt".into(), bytes: Vec::new() },
        ];
        Self { records, shards, sidecars }
    }

    fn contents(&self) -> Contents {
        let shard = |(i, plan): (usize, &ShardPlan)| Shard {
            data_path: shard_name(i),
            format: "raw-shard".into(),
            nbytes: plan.bytes,
            records: plan
                .records
                .iter()
                .map(|&(i, at)| ShardRecord::new(&self.records[i], at))
                .collect(),
            md5: String::new(),
        };
        let metadata = Metadata { param_size: 1, param_bytes: 1.0, bits_per_param: 1.0 };
        let records = self.shards.iter().enumerate().map(shard).collect();
        let tensors = TensorCache { metadata, records };
        Contents { about: None, tensors, sidecars: self.sidecars.clone() }
    }

    /// The bytes of a record: any, but always the same.
    fn bytes(&self, record: usize) -> Vec<u8> {
        let length = self.records[record].stored_bytes();
        (0..length).map(|i| (i * 31 + record as u64 * 7 + i / 251).to_le_bytes()[0]).collect()
    }

    fn write(&self, folder: &Path, cut: Cut) -> Result<Written, PackError> {
        let claim = Draft::new(self.contents(), cut)?.claim(folder, options())?;
        claim.write_records(&self.records, &self.shards, |push| {
            for record in 0..self.records.len() {
                for piece in self.bytes(record).chunks(97) {
                    push(record, piece.to_vec())?;
                }
            }
            Ok(())
        })
    }

    fn shard(&self, shard: &ShardPlan) -> Vec<u8> {
        shard.records.iter().flat_map(|(record, _)| self.bytes(*record)).collect()
    }
}

/// What is there stays where a new bundle is refused, and whoever refuses leaves nothing behind.
#[test]
fn a_bundle_is_not_removed_for_one_that_has_no_room() {
    let (input, folder) = (Input::new(&[100, 20], 4096), TempDir::new().unwrap());
    input.write(folder.path(), Cut::default()).unwrap();
    let before = files(folder.path());
    for (occupied, scratch_bytes) in [(Occupied::Replace, u64::MAX), (Occupied::Refuse, 0)] {
        let options = ClaimOptions { occupied, scratch_bytes, ..options() };
        let draft = Draft::new(input.contents(), Cut::default()).unwrap();
        let error = draft.claim(folder.path(), options).unwrap_err();
        assert!(matches!(error, PackError::NoSpace { .. } | PackError::NotEmpty { .. }), "{error}");
        assert_eq!(files(folder.path()), before);
    }
    // A journal that says nothing is no leave to replace it.
    fs_err::write(folder.path().join(".packlight-journal"), "").unwrap();
    let error = input.write(folder.path(), Cut::default()).unwrap_err();
    assert!(matches!(error, PackError::NotEmpty { .. }), "{error}");
    assert_eq!(files(folder.path()), before);
}

fn options() -> ClaimOptions {
    ClaimOptions { occupied: Occupied::Refuse, origin: String::new(), scratch_bytes: 0 }
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs_err::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), fs_err::read(e.path()).unwrap()))
        .collect();
    files.sort();
    files
}

fn joined(folder: &Path, manifest: &Packlight, name: &str) -> Vec<u8> {
    manifest.parts(name).flat_map(|file| fs_err::read(folder.join(&file.path)).unwrap()).collect()
}

fn cut(cap: Option<u64>, hashed: bool) -> Cut {
    let names = if hashed { Names::Hashed } else { Names::Plain };
    Cut { max_file_bytes: cap, names, host: None }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Whatever the limit and the shards: no file is larger, parts join to the shards, the bundle verifies, and packing
    /// it again for any other limit gives what writing it for that gives.
    #[test]
    fn any_cut_holds_the_same_bundle(
        elements in prop::collection::vec(1..6000_u64, 1..12),
        shard_bytes in 1..20_000_u64,
        caps in prop::collection::vec((prop::option::of(9_000..40_000_u64), any::<bool>()), 2),
    ) {
        let input = Input::new(&elements, shard_bytes);
        let folder = TempDir::new().unwrap();
        let cuts: Vec<Cut> = caps.into_iter().map(|(cap, hashed)| cut(cap, hashed)).collect();
        let mut written = Vec::new();
        for (i, cut) in cuts.iter().enumerate() {
            let bundle = folder.path().join(format!("{i}"));
            match input.write(&bundle, *cut) {
                Ok(_) => {}
                // So many parts that their list is too long.
                Err(PackError::DoesNotFit { .. }) => return Ok(()),
                Err(error) => panic!("{error}"),
            }
            let cap = cut.max_file_bytes.unwrap_or(u64::MAX);
            prop_assert!(files(&bundle).iter().all(|(_, bytes)| bytes.len() as u64 <= cap));
            let manifest = Packlight::parse(&fs_err::read(bundle.join(PACKLIGHT)).unwrap()).unwrap();
            let cache = TensorCache::parse(&joined(&bundle, &manifest, TENSOR_CACHE)).unwrap();
            for (plan, shard) in input.shards.iter().zip(&cache.records) {
                prop_assert!(joined(&bundle, &manifest, &shard.data_path) == input.shard(plan));
            }
            let options = VerifyOptions { md5: true, allow_extra: false };
            prop_assert_eq!(verify(bundle.as_path(), options).unwrap().problems, vec![]);
            written.push(files(&bundle));
        }
        for (i, cut) in cuts.iter().enumerate() {
            let source = Source::open(&folder.path().join(format!("{}", 1 - i))).unwrap();
            let again = folder.path().join(format!("again-{i}"));
            let claim = Draft::new(source.contents().unwrap(), *cut).unwrap().claim(&again, options());
            source.copy(claim.unwrap(), |_| ()).unwrap();
            prop_assert!(files(&again) == written[i]);
        }
    }
}

#[test]
fn limits_are_checked_all_at_once_and_before_anything_is_written() {
    let input = Input::new(&[600_000_000; 2], 1 << 20);
    let host = Host::find("github-pages");
    let small = Cut { max_file_bytes: Some(400_000), names: Names::Plain, host };
    let Err(PackError::DoesNotFit { host: Some("github-pages"), misfits }) =
        Draft::new(input.contents(), small)
    else {
        panic!("2.4 GB fit 1 GB")
    };
    let kinds: Vec<bool> =
        misfits.iter().map(|misfit| matches!(misfit, Misfit::Manifest { .. })).collect();
    assert_eq!(kinds, [true, false], "{misfits:?}");

    let host = Host::find("huggingface");
    let input = Input::new(&[600_000; 1], 1 << 20);
    let many = Cut { max_file_bytes: Some(100), names: Names::Plain, host };
    assert!(Draft::new(input.contents(), many).is_err(), "a manifest of 100 bytes");
    // A limit of one byte is refused without trying.
    assert!(Draft::new(Input::new(&[1 << 40], 1).contents(), cut(Some(1), false)).is_err());
    let roomy = Draft::new(Input::new(&[600_000; 1], 1 << 20).contents(), cut(None, false));
    assert_eq!(roomy.unwrap().in_parts(), []);
}

/// A record that brings more or fewer bytes than it should is an error, and no manifest is written.
#[test]
fn records_come_whole() {
    let input = Input::new(&[100, 200], 1 << 20);
    for length in [399, 401, 0] {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        let claim = Draft::new(input.contents(), Cut::default())
            .unwrap()
            .claim(&bundle, options())
            .unwrap();
        let written = claim.write_records::<PackError>(&input.records, &input.shards, |push| {
            push(0, vec![0; 200])?;
            push(1, vec![0; length])
        });
        assert!(matches!(written, Err(PackError::WrongLength { .. })), "{written:?}");
        assert!(!bundle.join(PACKLIGHT).exists() && !bundle.join(TENSOR_CACHE).exists());
    }
}

#[test]
fn there_must_be_room() {
    let folder = TempDir::new().unwrap();
    let draft = Draft::new(Input::new(&[100], 1000).contents(), Cut::default()).unwrap();
    let huge = ClaimOptions { scratch_bytes: u64::MAX, ..options() };
    let claimed = draft.claim(&folder.path().join("bundle"), huge);
    assert!(matches!(claimed, Err(PackError::NoSpace { needed: u64::MAX, .. })), "{claimed:?}");
}
