//! Tests training on images: the shipped examples, and files that can't be used.

use std::path::Path;

use super::harness::{RunResult, TestDir};

/// Returns a directory in which `examples` is that of the repository.
fn place_with_examples() -> TestDir {
    let place = TestDir::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    std::os::unix::fs::symlink(examples, place.path("examples")).unwrap();
    place
}

fn accuracy(output: &str) -> f64 {
    let line = output.lines().rfind(|line| line.starts_with("Evaluation metrics:")).unwrap();
    line.split("eval/accuracy = ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn plain_network_learns_to_read_digits() {
    let place = place_with_examples();
    let trained = place.succeed("train_and_eval -p examples/mlp-digits.yaml -o m --max_steps 200");
    assert!(accuracy(&trained.stdout) > 0.8, "{}", trained.stdout);
}

#[test]
fn models_of_images_have_the_same_bits_on_any_number_of_systems() {
    let place = place_with_examples();
    for name in ["mlp", "vit"] {
        let text = std::fs::read_to_string(place.path(format!("examples/{name}-digits.yaml"))).unwrap();
        let text = text.replace("batch_size: 64", "batch_size: 8").replace("dropout_rate: 0.0", "dropout_rate: 0.1");
        place.write(&format!("{name}.yaml"), text);
        let train = |flags: &str, model_dir: &str| -> RunResult {
            place.succeed(&format!("train -p {name}.yaml -o {model_dir} --max_steps 3 {flags}"));
            place.result(model_dir, 3)
        };
        let one = train("--num_csx 1", &format!("{name}1"));
        assert_eq!(train("--num_csx 3 --num_act_servers 2", &format!("{name}3")), one, "{name}");
    }
}

/// An idx file with these dimensions and elements.
fn idx(sizes: &[u32], elements: &[u8]) -> Vec<u8> {
    let header = [0, 0, 8, sizes.len() as u8].into_iter().chain(sizes.iter().flat_map(|size| size.to_be_bytes()));
    header.chain(elements.iter().copied()).collect()
}

#[test]
fn bad_images_end_a_run_with_one_sentence() {
    let place = place_with_examples();
    let params = std::fs::read_to_string(place.path("examples/mlp-digits.yaml")).unwrap();
    let params = params.replace("examples/data/digits", "data").replace("train_and_eval", "train");
    place.write("idx.yaml", &params);
    std::fs::create_dir_all(place.path("data")).unwrap();
    for (images, labels, says) in [
        (idx(&[2, 28, 28], &[0; 1567]), idx(&[2], &[1, 2]), "is truncated"),
        (idx(&[2, 28, 27], &[0; 1512]), idx(&[2], &[1, 2]), "image_size"),
        (idx(&[2, 28, 28], &[0; 1568]), idx(&[2], &[1, 10]), "label 1 of data/train-labels-idx1-ubyte: label 10"),
    ] {
        place.write("data/train-images-idx3-ubyte", images);
        place.write("data/train-labels-idx1-ubyte", labels);
        let refused = place.run("train -p idx.yaml -o m");
        assert_eq!(refused.code(), 2, "{}\n{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(says) && refused.stderr.contains("\nhint: "), "{}", refused.stderr);
    }

    // The second image of a directory is found to be bad only when it is read.
    let folder = params.replace("MNISTDataProcessor", "ImageNet1KProcessor").replace("shuffle: True", "shuffle: False");
    place.write("folder.yaml", folder.replace("batch_size: 64", "batch_size: 8"));
    let good = include_bytes!("../../../tests/fuzz/corpus/images/gray.png");
    std::fs::create_dir_all(place.path("data/train/a")).unwrap();
    place.write("data/train/a/1.png", good);
    place.write("data/train/a/2.png", &good[..good.len() / 2]);
    let ended = place.run("train -p folder.yaml -o m");
    assert_eq!(ended.code(), 1, "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("data/train/a/2.png can't be decoded"), "{}", ended.stderr);
}
