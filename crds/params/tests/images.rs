//! Tests the keys of models that read images, in the forms of the public model zoo's files.

mod common;

use common::{resolve, resolved};
use millrace_params::{
    DataSource, ImageFormat, ImageNetwork, ImagePart, ImageTransform, JobSpec, ModelFamily, Nonlinearity,
};

/// An older file, which names neither its model nor its optimizer.
const MLP: &str = "\
description: A plain network.
train_input: {data_dir: d, batch_size: 256, shuffle: True, num_parallel_calls: 0}
model: {hidden_sizes: [500, 300], dropout: 0.2, activation_fn: tanh}
optimizer: {learning_rate: 0.001, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-8}
runconfig: {num_epochs: 3, steps_per_epoch: 100, max_steps: 1000}
csconfig: {use_cbfloat16: False}
";

const TRANSFORMER: &str = "\
train_input:
    data_processor: ImageNet1KProcessor
    data_dir: d
    num_classes: 7
    image_size: [32, 48]
    batch_size: 64
    split: train
    transforms:
    - {name: resize, size: 40}
    - {name: random_resized_crop, size: [32, 48], scale: [0.5, 1.0], interpolation: bilinear}
    - {name: random_horizontal_flip}
    - {name: to_tensor}
    - {name: normalize, mean: [0.5, 0.5, 0.5], std: [0.25]}
eval_input: {batch_size: 8}
model:
    name: vision_transformer
    num_classes: 7
    image_size: [32, 48]
    patch_size: [16, 8]
    hidden_size: 64
    num_hidden_layers: 2
    num_heads: 4
    use_encoder_pooler_layer: True
    pooler_nonlinearity: tanh
optimizer: {optimizer_type: Adam, learning_rate: 0.001}
runconfig: {max_steps: 10}
";

fn network(job: &JobSpec) -> &ImageNetwork {
    &job.model.image.as_ref().unwrap().network
}

#[test]
fn older_file_is_a_plain_network_trained_by_adam() {
    let resolved = resolved(MLP);
    let job = &resolved.job;
    assert_eq!((job.model.family, job.model.nonlinearity), (ModelFamily::FcMnist, Nonlinearity::Tanh));
    assert_eq!(network(job), &ImageNetwork::Mlp { hidden_sizes: vec![500, 300] });
    assert_eq!((job.model.vocab_size, job.model.dropout_rate, job.optimizer.kind.name()), (10, 0.2, "adam"));
    assert_eq!((job.run.max_steps, job.run.max_epochs), (300, None), "epochs of 100 steps");
    let DataSource::Images { images, .. } = &job.train_input.source else { panic!("{:?}", job.train_input.source) };
    assert_eq!(
        (images.format, images.part, images.shape.dimensions()),
        (ImageFormat::Idx, ImagePart::Train, [1, 28, 28])
    );
    assert_eq!(images.transforms, [ImageTransform::Normalize { mean: vec![0.1307], std: vec![0.3081] }]);
    assert_eq!((job.train_input.max_sequence_length, job.train_input.leaf_size()), (1, 32));
    assert!(resolved.ignored_keys.contains(&"csconfig".to_owned()), "{:?}", resolved.ignored_keys);
    let deep = MLP.replace("hidden_sizes: [500, 300]", "depth: 3, hidden_size: 50");
    assert_eq!(network(&common::resolved(&deep).job), &ImageNetwork::Mlp { hidden_sizes: vec![50; 3] });
}

#[test]
fn transformer_and_its_transforms_are_understood() {
    let job = resolved(TRANSFORMER).job;
    let expected = ImageNetwork::Transformer {
        patch_size: [16, 8],
        has_projection_bias: true,
        pooler_nonlinearity: Some(Nonlinearity::Tanh),
    };
    assert_eq!((network(&job), job.model.image.as_ref().unwrap().rows()), (&expected, 13));
    let DataSource::Images { images, .. } = &job.train_input.source else { panic!("{:?}", job.train_input.source) };
    let [resize, crop, flip, normalize] = images.transforms.as_slice() else { panic!("{:?}", images.transforms) };
    assert_eq!(resize, &ImageTransform::ResizeShorterSide { length: 40 });
    assert!(matches!(crop, ImageTransform::RandomResizedCrop { size: [32, 48], scale: [0.5, 1.0], .. }), "{crop:?}");
    assert_eq!(flip, &ImageTransform::RandomHorizontalFlip { p: 0.5 });
    assert_eq!(normalize, &ImageTransform::Normalize { mean: vec![0.5; 3], std: vec![0.25] });
    // Evaluation reads the other part, without the random transforms of training.
    let DataSource::Images { paths, images } = &job.eval_input.as_ref().unwrap().source else { panic!() };
    assert_eq!((paths[0].as_str(), images.part, images.format), ("d", ImagePart::Validation, ImageFormat::Folder));
    assert_eq!(images.transforms[0], ImageTransform::Resize { size: [32, 48] });
}

#[test]
fn contradictions_and_foreign_keys_are_named() {
    for (base, from, to, key) in [
        (TRANSFORMER, "patch_size: [16, 8]", "patch_size: [16, 9]", "model.patch_size"),
        (TRANSFORMER, "patch_size: [16, 8]", "patch_size: [16]", "model.patch_size"),
        (TRANSFORMER, "patch_size: [16, 8]", "vocab_size: 7", "model.vocab_size"),
        (TRANSFORMER, "patch_size: [16, 8]", "prepend_cls_token: False", "model.prepend_cls_token"),
        (TRANSFORMER, "patch_size: [16, 8]", "position_embedding_type: fixed", "model.position_embedding_type"),
        (
            TRANSFORMER,
            "    num_classes: 7\n    image_size: [32, 48]\n    batch",
            "    num_classes: 8\n    batch",
            "train_input.num_classes",
        ),
        (TRANSFORMER, "{name: resize, size: 40}", "{name: resize}", "train_input.transforms.0.size"),
        (TRANSFORMER, "{name: resize, size: 40}", "{name: color_jitter}", "train_input.transforms.0.name"),
        (TRANSFORMER, "{name: to_tensor}", "{name: to_tensor, p: 0.5}", "train_input.transforms.3.p"),
        (TRANSFORMER, "std: [0.25]", "std: [0.0]", "train_input.transforms.4.std"),
        (
            TRANSFORMER,
            "data_processor: ImageNet1KProcessor",
            "data_processor: GptTextDataProcessor",
            "train_input.data_processor",
        ),
        (TRANSFORMER, "split: train", "split: all", "train_input.split"),
        (MLP, "dropout: 0.2", "num_heads: 2", "model.num_heads"),
        (MLP, "dropout: 0.2", "depth: 3", "model.depth"),
        (MLP, "hidden_sizes: [500, 300]", "hidden_sizes: [500, 0]", "model.hidden_sizes"),
        (MLP, "activation_fn: tanh", "activation_fn: swiglu", "model.activation_fn"),
    ] {
        assert!(base.contains(from), "{from}");
        let error = resolve(&base.replacen(from, to, 1)).unwrap_err();
        assert!(error.problems().any(|problem| problem.key == key), "{to}: {error}");
    }
}
