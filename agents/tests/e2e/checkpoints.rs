//! Tests of checkpoints on the command line: damage, choice of the newest, export and import.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::harness::{TestDir, largest_file};

type Damage = fn(&mut Vec<u8>);

/// Creates a directory with a run of two steps in `m`.
fn trained() -> TestDir {
    let place = TestDir::new();
    place.succeed("train -p params.yaml -o m --num_csx 2 --max_steps 2");
    place
}

/// Returns the largest data file of the checkpoint.
fn data_file(place: &TestDir, checkpoint: &str) -> PathBuf {
    largest_file(&place.path(checkpoint).join("parameters"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn damaged_checkpoint_is_reported_and_never_used() {
    let place = trained();
    place.succeed("checkpoint verify m/checkpoint_2");
    let damages: [(&str, Damage); 2] =
        [("flipped", |bytes| *bytes.last_mut().unwrap() ^= 1), ("truncated", |bytes| bytes.truncate(bytes.len() - 4))];
    for (name, damage) in damages {
        copy(&place.path("m/checkpoint_2"), &place.path(name));
        let file = data_file(&place, name);
        let mut bytes = fs::read(&file).unwrap();
        damage(&mut bytes);
        fs::write(&file, bytes).unwrap();

        let verified = place.run(&format!("checkpoint verify {name}"));
        assert_eq!(verified.code(), 1, "{name}: {}", verified.stderr);
        assert!(verified.stdout.contains(file.file_name().unwrap().to_str().unwrap()), "{}", verified.stdout);

        let before = place.files();
        let refused = place.run(&format!("train -p params.yaml -o new --checkpoint_path {name} --num_csx 1"));
        assert_eq!(refused.code(), 2, "{name}: {}", refused.stderr);
        assert!(refused.stderr.contains("the checkpoint is damaged"), "{}", refused.stderr);
        assert!(refused.stderr.contains("\nhint: "), "{}", refused.stderr);
        assert_eq!(place.files(), before, "{name}");
    }
}

#[test]
fn damaged_newest_checkpoint_is_skipped() {
    let place = TestDir::new();
    place.params("params.yaml", &[("max_steps: 6", "max_steps: 6\n    checkpoint_steps: 2")]);
    place.succeed("train -p params.yaml -o m --num_csx 1");
    let before = place.result("m", 6);
    fs::remove_file(data_file(&place, "m/checkpoint_6")).unwrap();
    let again = place.succeed("train -p params.yaml -o m --num_csx 2");
    assert!(again.stdout.contains("checkpoint_4"), "{}", again.stdout);
    assert_eq!(place.result("m", 6), before);
}

#[test]
fn later_runs_resume_from_the_newest_branch() {
    let place = TestDir::new();
    let often = ("max_steps: 6", "max_steps: 6\n    checkpoint_steps: 2");
    place.params("params.yaml", &[often]);
    place.params("slower.yaml", &[often, ("learning_rate: 1e-2", "learning_rate: 1e-3")]);
    place.succeed("train -p params.yaml -o m --num_csx 1");
    let left = place.result("m", 6);
    place.succeed("train -p slower.yaml -o whole --num_csx 1 --checkpoint_path m/checkpoint_2");

    place.succeed("train -p slower.yaml -o m --num_csx 1 --checkpoint_path m/checkpoint_2 --max_steps 4");
    assert_eq!(place.train_lines("m").len(), 4);
    // The checkpoint of the abandoned lineage is complete, and newer by its number.
    place.succeed("checkpoint verify m/checkpoint_6");
    let again = place.succeed("train -p slower.yaml -o m --num_csx 2");
    assert!(
        again.stdout.contains("Skipping checkpoint ") && again.stdout.contains("checkpoint_6: "),
        "{}",
        again.stdout
    );
    assert!(again.stdout.contains("of step 4 from"), "{}", again.stdout);

    let (new, whole) = (place.result("m", 6), place.result("whole", 6));
    assert_eq!((&new.parameters, &new.optimizer), (&whole.parameters, &whole.optimizer));
    assert_ne!(new.parameters, left.parameters);
    assert_eq!(new.steps, [&left.steps[..2], &whole.steps].concat());

    // Return to the abandoned lineage, from one of its remaining checkpoints.
    place.succeed("train -p params.yaml -o m --num_csx 1 --checkpoint_path m/checkpoint_2 --max_steps 3");
    place.succeed("train -p slower.yaml -o m --num_csx 1 --checkpoint_path m/checkpoint_6 --max_steps 7");
    let steps = place.result("m", 7).steps;
    assert_eq!((steps.len(), &steps[..6]), (7, &new.steps[..]));
}

#[test]
fn checkpoint_of_other_model_is_rejected() {
    let place = trained();
    place.params("wider.yaml", &[("filter_size: 64", "filter_size: 96")]);
    let before = place.files();
    let refused = place.run("train -p wider.yaml -o new --checkpoint_path m/checkpoint_2 --num_csx 1");
    assert_eq!(refused.code(), 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("a different model"), "{}", refused.stderr);
    assert_eq!(place.files(), before);
}

#[test]
fn instruction_set_of_checkpoint_changes_only_by_flag() {
    let place = TestDir::new();
    place.succeed("train -p params.yaml -o m --num_csx 1 --max_steps 2 --isa portable");
    let best = millrace_emulator::numerics::Isa::detect();
    if best == millrace_emulator::numerics::Isa::Portable {
        return;
    }
    let resume = "train -p params.yaml --num_csx 1 --checkpoint_path m/checkpoint_2";
    place.succeed(&format!("{resume} -o kept"));
    assert_eq!(place.info("kept/checkpoint_6")["numerics_profile"]["isa"], "portable");
    let refused = place.run(&format!("{resume} -o new --isa {best}"));
    assert_eq!(refused.code(), 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("--allow_profile_change"), "{}", refused.stderr);
    place.succeed("train -p params.yaml -o m --num_csx 1 --max_steps 3 --allow_profile_change");
    let notes = place.info("m/checkpoint_3")["notes"].to_string();
    assert!(notes.contains("profile"), "{notes}");
}

#[test]
fn export_and_import_round_trip() {
    let place = trained();
    place.succeed("checkpoint export m/checkpoint_2 --to hf exported");
    assert!(place.path("exported/model.safetensors").is_file() && place.path("exported/config.json").is_file());
    place.succeed("checkpoint import exported -p params.yaml -o imported");
    let (ours, theirs) = (place.info("m/checkpoint_2"), place.info("imported/checkpoint_0"));
    assert_eq!(theirs["step"], 0);
    assert_eq!(theirs["parameters_blake3"], ours["parameters_blake3"]);
    place.succeed("train -p params.yaml -o imported --num_csx 2 --max_steps 1");

    let written = place.succeed("checkpoint import exported --write_params tuned.yaml -o tuned");
    assert!(written.stdout.contains("train with: millrace-agent train -p tuned.yaml"), "{}", written.stdout);
    assert_eq!(place.info("tuned/checkpoint_0")["parameters_blake3"], ours["parameters_blake3"]);
    std::fs::create_dir(place.path("data")).unwrap();
    let tokens: Vec<u8> = (0..4000_u16).flat_map(|at| (at * 7 % 64).to_le_bytes()).collect();
    place.write("data/own.bin", tokens);
    place.succeed("train -p tuned.yaml --max_steps 1");
    assert!(place.path("tuned/checkpoint_1").is_dir());

    for (line, says) in [
        ("checkpoint import exported --write_params tuned.yaml -o another", "tuned.yaml already exists"),
        ("checkpoint import exported --write_params new.yaml -o tuned", "tuned already has a checkpoint of step"),
        ("checkpoint import m --write_params new.yaml -o another", "config.json: it is missing"),
        ("checkpoint import nowhere --write_params new.yaml -o another", "nowhere: it is not a directory"),
        ("checkpoint import exported --write_params gone/new.yaml -o another", "can't create the params gone/new.yaml"),
    ] {
        let before = place.files();
        let refused = place.run(line);
        assert!(refused.code() == 2 && refused.stderr.contains(says), "{line}: {}", refused.stderr);
        assert_eq!(place.files(), before, "{line}");
    }

    let again = place.run("checkpoint export m/checkpoint_2 --to hf exported");
    assert_eq!(again.code(), 2, "{}", again.stderr);
    let taken = place.run("checkpoint import exported -p params.yaml -o m");
    assert_eq!(taken.code(), 2, "{}", taken.stderr);
    let before = place.files();
    let nothing = place.run("checkpoint import m -p params.yaml -o new");
    assert_eq!(nothing.code(), 2, "{}", nothing.stderr);
    assert_eq!(place.files(), before);
}

/// Recovery checkpoints are written every second, and none remains once the run has saved its last step.
#[test]
fn run_saves_by_time_and_keeps_newest() {
    let place = TestDir::new();
    place.params("params.yaml", &[("max_steps: 6", "max_steps: 1000000\n    checkpoint_seconds: 1")]);
    let mut running = place.start("train -p params.yaml -o m");
    (0..3).for_each(|_| running.wait_for("Saved checkpoint"));
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code(), 130, "{}\n{}", ended.stdout, ended.stderr);
    let saved: Vec<PathBuf> = place.files().into_iter().filter(|path| path.ends_with("manifest.json")).collect();
    assert_eq!(saved.len(), 1, "{saved:?}\n{}", ended.stdout);
}
