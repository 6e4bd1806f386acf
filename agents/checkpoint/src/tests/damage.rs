//! Checks that every damaged byte is found and reported, and that no content on disk makes the reader panic.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::testing::{lock, plan, random_bits, sgd_moments, write};
use crate::{Checkpoint, Digest, Error, Moments, hf, verify};

/// Every file below `dir`, relative to it.
fn files(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        Checkpoint::open(dir).unwrap().files().unwrap().into_iter().map(|file| file.path).collect();
    all.sort();
    all
}

#[test]
fn every_flipped_bit_is_found_and_its_file_named() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &plan, 5, &sgd_moments());
    for name in files(&path) {
        let file = path.join(&name);
        let undamaged = fs::read(&file).unwrap();
        let length = undamaged.len();
        // Length and name of the header, its padding, and the data on both sides of a chunk boundary.
        let offsets = [0, 7, 9, 60, length / 3, 4095, 4096, 4096 + 399, 4096 + 400, length - 1];
        for offset in offsets.into_iter().filter(|&offset| offset < length) {
            let mut damaged = undamaged.clone();
            damaged[offset] ^= 1 << (offset % 8);
            fs::write(&file, &damaged).unwrap();
            let found = verify(&path, |_| ()).unwrap();
            assert_eq!(found.len(), 1, "{name} at {offset}: {found:?}");
            assert_eq!(found[0].file, file);
            if let Some(bytes) = &found[0].bytes {
                assert!(bytes.contains(&(offset as u64)) && !found[0].tensors.is_empty());
            }
            let opened = Checkpoint::open(&path).and_then(|checkpoint| checkpoint.verify());
            let error = opened.unwrap_err();
            assert!(error.to_string().contains(&name) && error.is_bad_input(), "{error}");
        }
        fs::write(&file, &undamaged).unwrap();
    }
    assert!(verify(&path, |_| ()).unwrap().is_empty());
}

#[test]
fn manifest_checksum_covers_every_byte() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &plan, 5, &Moments::none());
    let file = path.join("manifest.json");
    let undamaged = fs::read(&file).unwrap();
    let open = fs::File::options().write(true).open(&file).unwrap();
    for (offset, byte) in undamaged.iter().enumerate() {
        open.write_all_at(&[byte ^ 1 << (offset % 8)], offset as u64).unwrap();
        assert!(matches!(Checkpoint::open(&path), Err(Error::Damaged(damage)) if damage.file == file), "at {offset}");
        open.write_all_at(&[*byte], offset as u64).unwrap();
    }
    Checkpoint::open(&path).unwrap();
}

#[test]
fn truncated_lengthened_emptied_and_missing_files_are_named() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &plan, 5, &sgd_moments());
    for name in files(&path) {
        let file = path.join(&name);
        let undamaged = fs::read(&file).unwrap();
        let longer = [undamaged.as_slice(), b" "].concat();
        for content in [Some(&undamaged[..undamaged.len() - 1]), Some(longer.as_slice()), Some(&[]), None] {
            match content {
                Some(content) => fs::write(&file, content).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            let error = Checkpoint::open(&path).unwrap_err();
            if content.is_none() && name == "manifest.json" {
                assert!(matches!(error, Error::NotACheckpoint { .. }), "{error}");
            } else {
                assert!(matches!(&error, Error::Damaged(damage) if damage.file == file), "{error}");
                assert_eq!(verify(&path, |_| ()).unwrap().len(), 1);
            }
        }
        fs::write(&file, &undamaged).unwrap();
    }
    let error = Checkpoint::open(dir.path().join("nothing")).unwrap_err();
    assert!(error.to_string().ends_with("is not a checkpoint: the directory does not exist"), "{error}");
}

/// Inserts an unexpected value at a random position of a document.
fn mutate(value: &mut Value, random: &mut impl Iterator<Item = usize>) {
    let values = json!([null, -1, 1e300, "", [], {}]);
    let numbers = json!([0, 1, 2, 3, 7, 1u64 << 33, 1u64 << 62, u64::MAX]);
    let strings = json!(["", "x", "../../etc", "/", "wte.weight", "m"]);
    let mut pick = |maximum: usize| random.next().unwrap() % maximum;
    let stop = pick(10) == 0;
    match value {
        Value::Object(map) if !map.is_empty() && !stop => {
            let key = map.keys().nth(pick(map.len())).unwrap().clone();
            if pick(12) == 0 {
                map.remove(&key);
            } else {
                mutate(&mut map[&key], random);
            }
        }
        Value::Array(items) if !items.is_empty() && !stop => {
            let index = pick(items.len());
            if pick(12) == 0 {
                items.remove(index);
            } else {
                mutate(&mut items[index], random);
            }
        }
        Value::Number(_) if pick(4) > 0 => *value = numbers[pick(8)].clone(),
        Value::String(_) if pick(4) > 0 => *value = strings[pick(6)].clone(),
        offset => *offset = values[pick(6)].clone(),
    }
}

/// Creates a new file at `path`; overwriting the old one would wait for the disk each time.
fn replace(path: &Path, content: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, content).unwrap();
}

/// Signs a manifest as the writer does.
fn sign(manifest: &Value) -> Vec<u8> {
    let body = serde_json::to_string(manifest).unwrap();
    let text = |checksum: &str| format!("{{\n  \"checksum\": \"{checksum}\",{}", &body[1..]);
    text(&Digest::of(text(&"0".repeat(64)).as_bytes()).to_string()).into_bytes()
}

#[test]
fn later_manifest_is_rejected_and_unknown_fields_ignored() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &plan, 5, &sgd_moments());
    let mut manifest: Value = serde_json::from_slice(&fs::read(path.join("manifest.json")).unwrap()).unwrap();
    manifest.as_object_mut().unwrap().remove("checksum");
    manifest["of_a_later_release"] = Value::Bool(true);
    replace(&path.join("manifest.json"), &sign(&manifest));
    Checkpoint::open_verified(&path).unwrap();
    manifest["format"] = (crate::FORMAT_VERSION + 1).into();
    replace(&path.join("manifest.json"), &sign(&manifest));
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains(&format!("format {}", crate::FORMAT_VERSION + 1)), "{error}");
    assert!(error.contains(&format!("up to {}", crate::FORMAT_VERSION)) && error.contains("release"), "{error}");
}

#[test]
fn mutated_manifests_and_layouts_never_panic() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &plan, 5, &sgd_moments());
    let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(path.join(name)).unwrap()).unwrap();
    let (mut manifest, layout) = (read("manifest.json"), read("layout.json"));
    let undamaged = fs::read(path.join("layout.json")).unwrap();
    manifest.as_object_mut().unwrap().remove("checksum");
    let mut random = (1..).flat_map(|seed| random_bits(seed, 64)).map(|value| (value.to_bits() >> 3) as usize);
    let (mut rejected, mut opened) = (0, 0);
    for round in 0..400 {
        let (mut manifest, mut layout) = (manifest.clone(), layout.clone());
        mutate(if round % 2 == 0 { &mut manifest } else { &mut layout }, &mut random);
        if round % 2 == 1 {
            let layout = serde_json::to_vec(&layout).unwrap();
            replace(&path.join("layout.json"), &layout);
            manifest["documents"][0]["bytes"] = layout.len().into();
            manifest["documents"][0]["blake3"] = Digest::of(&layout).to_string().into();
        } else {
            replace(&path.join("layout.json"), &undamaged);
        }
        let text = if manifest.is_object() { sign(&manifest) } else { vec![b'{'; round] };
        replace(&path.join("manifest.json"), &text);
        match Checkpoint::open(&path) {
            Err(error) => {
                assert!(error.is_bad_input(), "{error}");
                rejected += 1;
            }
            Ok(checkpoint) => {
                opened += 1;
                let _ = checkpoint.find_damage(|_| ());
                let _ = (checkpoint.info().to_string(), checkpoint.files());
                let _ = hf::export_hf(&checkpoint, &dir.path().join(format!("hf{round}")), None);
            }
        }
    }
    // The mutations reach the code after the parser, in both directions.
    assert!(rejected > 100 && opened > 50, "{rejected} refused, {opened} opened");
}
