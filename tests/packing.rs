//! Bundles cut for a host: no file is too large, nothing that is read changes, and how one came to be does not show.

use std::path::{Path, PathBuf};

use packlight_formats::manifest::tensor_cache::TensorCache;
use packlight_formats::manifest::{Names, Packlight};
use serde_json::json;
use tempfile::TempDir;

use crate::packlight;
use crate::support::{contents, converted, edit_json, fixture, repo};

/// Converts with MLC's codes and more arguments.
#[track_caller]
fn convert(checkpoint: &Path, bundle: &Path, more: &[&str]) {
    let mut args = vec!["convert", checkpoint.to_str().unwrap(), "--codes", "mlc", "-o"];
    args.push(bundle.to_str().unwrap());
    args.extend(more);
    crate::support::packlight(args).ok();
}

#[track_caller]
fn pack(bundle: &Path, output: &Path, more: &[&str]) {
    let mut args = vec!["pack", bundle.to_str().unwrap(), "-o", output.to_str().unwrap()];
    args.extend(more);
    crate::support::packlight(args).ok();
}

fn manifest(bundle: &Path) -> Packlight {
    Packlight::parse(&fs_err::read(bundle.join("packlight.json")).unwrap()).unwrap()
}

/// A file of the bundle, from its parts.
fn joined(bundle: &Path, name: &str) -> Vec<u8> {
    let manifest = manifest(bundle);
    manifest.parts(name).flat_map(|file| fs_err::read(bundle.join(&file.path)).unwrap()).collect()
}

fn logits(bundle: &Path, folder: &TempDir) -> Vec<u8> {
    let file = folder.path().join("logits.safetensors");
    let device = ["--device", "cpu"];
    packlight!("run", bundle, "--tokens", "5,6,7", "--logits", file, device[0], device[1]).ok();
    fs_err::read(file).unwrap()
}

#[test]
fn a_limit_holds_for_every_file_and_changes_nothing_that_is_read() {
    for (name, caps) in [("llama", ["28KiB", "64KiB"]), ("gemma3", ["40KB", "64KiB"])] {
        let (folder, whole) = converted(&fixture(name));
        let expected = logits(&whole, &folder);
        for (i, cap) in caps.iter().enumerate() {
            for names in ["plain", "hashed"] {
                let bundle = folder.path().join(format!("{i}-{names}"));
                convert(&fixture(name), &bundle, &["--max-file-bytes", cap, "--names", names]);
                let limit = parse_size::parse_size(cap).unwrap();
                for (file, bytes) in contents(&bundle) {
                    assert!(bytes.len() as u64 <= limit, "{name} {cap}: {file}");
                }
                assert!(packlight!("verify", bundle, "--all").ok().starts_with("ok"));
                assert!(logits(&bundle, &folder) == expected, "{name} {cap} {names}");
                let cache = TensorCache::parse(&joined(&bundle, "tensor-cache.json")).unwrap();
                assert!(
                    joined(&bundle, &cache.records[0].data_path)
                        == fs_err::read(whole.join("params_shard_0.bin")).unwrap()
                );
                if names == "plain" {
                    let exact = fs_err::read(whole.join("tensor-cache.json")).unwrap();
                    assert!(joined(&bundle, "tensor-cache.json") == exact);
                }
            }
        }
    }
}

/// The demo's tokenizer is compacted on the way and comes back; so do shards, manifests and hashes.
#[test]
fn packing_again_gives_what_converting_gives() {
    let (folder, plain) = converted(&repo("demo"));
    let path = |name: &str| folder.path().join(name);
    let cuts: [&[&str]; 5] = [
        &[],
        &["--host", "cloudflare-pages"],
        &["--max-file-bytes", "100KB"],
        &["--max-file-bytes", "240KB", "--host", "cloudflare-pages", "--names", "hashed"],
        &["--names", "hashed"],
    ];
    let bundles: Vec<PathBuf> = (0..cuts.len()).map(|i| path(&format!("{i}"))).collect();
    for (bundle, cut) in bundles.iter().zip(cuts) {
        convert(&repo("demo"), bundle, cut);
    }
    assert!(contents(&bundles[0]) == contents(&plain));
    assert_eq!(manifest(&bundles[2]).compacted, ["tokenizer.json"]);
    // Round in a ring and back: each from the one before.
    for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 3), (3, 0)] {
        let again = path(&format!("{from}-{to}"));
        pack(&bundles[from], &again, cuts[to]);
        assert!(contents(&again) == contents(&bundles[to]), "{:?} to {:?}", cuts[from], cuts[to]);
    }
    let answer = packlight!("run", bundles[3], "-p", "Hi", "--device", "cpu", "--json").json();
    assert_eq!(answer["text"], "Hello! How can I help you today?");
}

#[test]
fn hashed_names_never_stand_for_other_bytes() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    convert(&repo("demo"), &first, &["--names", "hashed"]);
    convert(&repo("demo"), &second, &["--names", "hashed", "--scheme", "q3f16_1"]);
    let aliases = |bundle: &Path| -> Vec<String> {
        let files = manifest(bundle).files.into_iter();
        files.filter(|file| file.alias_of.is_some()).map(|file| file.path).collect()
    };
    assert_eq!(aliases(&first), aliases(&second));
    assert_eq!(aliases(&first).len(), 6, "small files, which WebLLM looks for by name");
    let (first, aliases) = (contents(&first), aliases(&first));
    for (name, bytes) in contents(&second) {
        let alias = aliases.contains(&name) || name == "packlight.json";
        assert!(alias || first.get(&name).is_none_or(|before| *before == bytes), "{name}");
    }
    assert_eq!(manifest(&second).names, Names::Hashed);
}

#[test]
fn a_bundle_of_mlc_is_cut_and_comes_back() {
    let (folder, whole) = converted(&fixture("qwen2"));
    let expected = logits(&whole, &folder);
    fs_err::remove_file(whole.join("packlight.json")).unwrap();
    fs_err::create_dir(whole.join(".git")).unwrap();
    fs_err::write(whole.join(".gitattributes"), "*.bin filter=lfs").unwrap();
    fs_err::write(whole.join("README.md"), "# A model").unwrap();
    let (cut, back) = (folder.path().join("cut"), folder.path().join("back"));
    pack(&whole, &cut, &["--max-file-bytes", "20KB", "--names", "hashed"]);
    assert!(packlight!("verify", cut, "--all").ok().starts_with("ok"));
    assert!(contents(&cut).values().all(|bytes| bytes.len() <= 20_000));
    let reduced = manifest(&cut);
    assert!(reduced.about.is_none(), "nothing is known of how it was made");
    // It runs as MLC's own do, by its chat configuration.
    assert!(logits(&cut, &folder) == expected);
    assert!(packlight!("inspect", cut).ok().contains("note        a plain MLC bundle"));
    pack(&cut, &back, &[]);
    let back = contents(&back);
    for (name, bytes) in contents(&whole) {
        if !name.starts_with('.') {
            assert!(back[&name] == bytes, "{name}");
        }
    }

    // An old bundle has the old manifest only, and gets both.
    fs_err::remove_file(whole.join("tensor-cache.json")).unwrap();
    let old = folder.path().join("old");
    pack(&whole, &old, &[]);
    assert!(contents(&old) == back);

    // Its only hashes are MD5 sums. What they find does not stay.
    let shard = whole.join("params_shard_0.bin");
    let sound = fs_err::read(&shard).unwrap();
    let mut flipped = sound.clone();
    flipped[70_001] ^= 4;
    fs_err::write(&shard, &flipped).unwrap();
    let again = folder.path().join("again");
    let error = packlight!("pack", whole, "-o", again).fails(2);
    assert!(error.contains("`params_shard_0.bin` does not have the MD5"), "{error}");
    assert!(!again.join("packlight.json").exists() && !again.join("params_shard_0.bin").exists());
    fs_err::write(&shard, &sound).unwrap();
    pack(&whole, &again, &[]);
    assert!(contents(&again) == back);
    fs_err::write(&shard, &sound[1..]).unwrap();
    let error = packlight!("pack", whole, "-o", folder.path().join("short")).fails(2);
    assert!(error.contains("expected") && error.contains("hint: "), "{error}");
}

#[test]
fn a_damaged_bundle_is_not_packed() {
    let (folder, bundle) = converted(&fixture("llama"));
    let shard = bundle.join("params_shard_0.bin");
    let mut bytes = fs_err::read(&shard).unwrap();
    bytes[5] ^= 1;
    fs_err::write(&shard, bytes).unwrap();
    let output = folder.path().join("again");
    let error = packlight!("pack", bundle, "-o", output).fails(2);
    assert!(error.contains("`params_shard_0.bin` chunk 0") && error.contains("hint: "), "{error}");
    assert!(!output.join("packlight.json").exists());
    let error = packlight!("pack", bundle, "-o", bundle, "--force").fails(2);
    assert!(error.contains("cannot be both read and written"), "{error}");
    let error = packlight!("pack", folder.path(), "-o", output).fails(2);
    assert!(error.contains("not a bundle"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_byte() {
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    let refused = |more: &[&str]| {
        let mut args = vec!["convert", "demo", "-o", bundle.to_str().unwrap()];
        args.extend(more);
        let error = crate::support::packlight(args).fails(2);
        assert!(!bundle.exists());
        error
    };
    let errors = [
        refused(&["--max-file-bytes", "4KiB"]),
        refused(&["--max-file-bytes", "30KB", "--host", "huggingface"]),
        refused(&["--max-file-bytes", "150", "--host", "cloudflare-pages"]),
    ];
    let lines = errors.iter().flat_map(|error| error.lines());
    let errors: Vec<&str> = lines.filter(|line| !line.starts_with("warning: ")).collect();
    insta::assert_snapshot!("misfits", errors.join("\n"));
    let error = refused(&["--host", "geocities"]);
    assert!(error.contains("cloudflare-pages") && error.contains("jsdelivr"), "{error}");
}

/// Paths are bytes, and JSON is text.
#[test]
#[cfg(unix)]
fn a_path_that_is_no_text_can_be_written_to() {
    use std::os::unix::ffi::OsStrExt as _;
    let (folder, bundle) = converted(&fixture("llama"));
    let odd = |name: &[u8]| folder.path().join(std::ffi::OsStr::from_bytes(name));
    let written = packlight!("pack", bundle, "-o", odd(b"x\xff"), "--json").json();
    assert!(written["output"].as_str().unwrap().ends_with("x\u{fffd}"), "{written}");
    let cached = packlight!("cache", "--cache", odd(b"y\xff"), "--json").json();
    assert!(cached["folder"].as_str().unwrap().ends_with("y\u{fffd}"), "{cached}");
}

#[test]
fn what_a_reader_would_refuse_is_not_packed() {
    let (folder, plain) = converted(&fixture("qwen2"));
    fs_err::remove_file(plain.join("packlight.json")).unwrap();
    let output = folder.path().join("output");
    let refused = |names: &[&str], more: &[&str], word: &str| {
        for name in names {
            fs_err::write(plain.join(name), "x").unwrap();
        }
        let mut args = vec!["pack", plain.to_str().unwrap(), "-o", output.to_str().unwrap()];
        args.extend(more);
        let error = crate::support::packlight(args).fails(2);
        assert!(error.contains(word) && error.contains("hint: "), "`{word}` is not in: {error}");
        assert!(!output.exists());
        for name in names {
            fs_err::remove_file(plain.join(name)).unwrap();
        }
    };
    refused(&["notes: draft.txt", "nul.txt"], &[], "`notes: draft.txt` is not a file name");
    refused(&["notes: draft.txt", "nul.txt"], &[], "`nul.txt` is not a file name");
    refused(&["README.md", "readme.md"], &[], "`readme.md` is not a file name of its own");
    refused(&[&"x".repeat(249)], &["--names", "hashed"], "is not a file name");
    // Files beside the shards are held in memory, and a stray one may be of any size.
    let stray = fs_err::File::create(plain.join("model.gguf")).unwrap();
    stray.set_len(1 << 30).unwrap();
    refused(&[], &[], "`model.gguf` is the largest");
}

/// The schema is generated from the types (formats/src/manifest/schema.rs); here it meets what they write.
#[test]
fn every_manifest_follows_the_schema() {
    let schema = fs_err::read_to_string(repo("docs/packlight.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let folder = TempDir::new().unwrap();
    let read = |bundle: &Path| -> serde_json::Value {
        serde_json::from_slice(&fs_err::read(bundle.join("packlight.json")).unwrap()).unwrap()
    };
    let mut manifests = Vec::new();
    for name in ["llama", "gemma2", "gemma4", "phi3", "granite", "smollm3"] {
        let bundle = folder.path().join(name);
        convert(&fixture(name), &bundle, &["--max-file-bytes", "100KB", "--names", "hashed"]);
        manifests.push(read(&bundle));
    }
    let (_folder, plain) = converted(&fixture("mistral"));
    manifests.push(read(&plain));
    fs_err::remove_file(plain.join("packlight.json")).unwrap();
    let reduced = folder.path().join("reduced");
    pack(&plain, &reduced, &["--max-file-bytes", "60KB"]);
    manifests.push(read(&reduced));
    for manifest in &manifests {
        let errors: Vec<String> = schema.iter_errors(manifest).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
        // And it is not one that lets everything pass.
        for (pointer, wrong) in [
            ("/schema_version", json!(2)),
            ("/files/0/bytes", json!(-1)),
            ("/files/0/sha256", json!("x")),
            ("/generator", json!({"name": "packlight", "version": "1", "surprise": 1})),
        ] {
            let mut manifest = manifest.clone();
            *manifest.pointer_mut(pointer).unwrap() = wrong;
            assert!(!schema.is_valid(&manifest), "{pointer}");
        }
    }
}

#[test]
fn a_part_that_is_missing_or_wrong_is_named() {
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    convert(&fixture("llama"), &bundle, &["--max-file-bytes", "50KB"]);
    let part = bundle.join("params_shard_0.bin.part001");
    let mut bytes = fs_err::read(&part).unwrap();
    bytes[7] ^= 1;
    fs_err::write(&part, &bytes).unwrap();
    let found = packlight!("verify", bundle, "--all");
    assert_eq!(found.code, 1);
    assert!(found.stdout.contains("`params_shard_0.bin.part001` chunk 0"), "{}", found.stdout);
    assert!(
        found.stdout.contains("`params_shard_0.bin` does not have the MD5"),
        "{}",
        found.stdout
    );
    let error = packlight!("run", bundle, "--tokens", "1", "--device", "cpu").fails(2);
    assert!(error.contains("`params_shard_0.bin.part001` chunk 0"), "{error}");
    fs_err::remove_file(&part).unwrap();
    let error = packlight!("run", bundle, "--tokens", "1", "--device", "cpu").fails(2);
    assert!(error.contains("`params_shard_0.bin.part001` is missing"), "{error}");
    // The list of parts is itself checked.
    edit_json(&bundle.join("packlight.json"), |manifest| {
        manifest["files"].as_array_mut().unwrap().remove(1);
    });
    let error = packlight!("run", bundle, "--tokens", "1", "--device", "cpu").fails(2);
    assert!(
        error.contains("bytes 50000..100000 of `params_shard_0.bin` are in no file"),
        "{error}"
    );
}
