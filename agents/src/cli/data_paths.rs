//! Resolves relative paths of data and of the model's graph: in the directory of the params file if something is found
//! there, or else in the working directory. The client `millrace` looks for small texts in the same two places, in the
//! same order.

use std::path::Path;

use millrace_data::MATCH_OPTIONS;
use millrace_params::JobSpec;

/// Replaces each relative path of `job` that exists in the directory of the file `params` by the path there.
pub fn resolve_beside_params(job: &mut JobSpec, params: &Path) {
    let Some(dir) = params.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return };
    let inputs = [Some(&mut job.train_input), job.eval_input.as_mut()];
    let data = inputs.into_iter().flatten().filter_map(|input| input.paths_mut()).flatten();
    for path in data.chain(job.model.graph.as_mut()) {
        let relative = dir.join(path.as_str());
        // Paths of a job are strings, so a path that is not UTF-8 is not used.
        if let Some(relative) =
            relative.to_str().filter(|relative| Path::new(path).is_relative() && exists_or_matches(relative))
        {
            *path = relative.to_owned();
        }
    }
}

/// Returns whether a file or directory has this name, or a file matches it as a glob.
fn exists_or_matches(name: &str) -> bool {
    Path::new(name).exists()
        || glob::glob_with(name, MATCH_OPTIONS)
            .is_ok_and(|mut found| found.any(|path| path.is_ok_and(|path| path.is_file())))
}

#[cfg(test)]
mod tests {
    use millrace_params::{FlagOverrides, Params};

    use super::*;

    #[test]
    fn paths_beside_the_params_take_precedence() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("texts")).unwrap();
        for name in ["own.txt", "texts/a.txt"] {
            std::fs::write(home.path().join(name), "text").unwrap();
        }
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-kjv.yaml")).unwrap();
        let mut job =
            Params::parse_yaml(&text).and_then(|params| params.resolve(&FlagOverrides::default())).unwrap().job;
        let paths = ["own.txt", "texts/*.txt", "texts", "elsewhere/*.txt", "Cargo.toml", "/own.txt"];
        let millrace_params::DataSource::Text { paths: all, .. } = &mut job.train_input.source else {
            panic!("no text")
        };
        *all = paths.map(str::to_owned).to_vec();
        let beside = |name: &str| home.path().join(name).display().to_string();
        let mut expected = paths.map(str::to_owned);
        for path in &mut expected[..3] {
            *path = beside(path);
        }
        resolve_beside_params(&mut job, &home.path().join("params.yaml"));
        assert_eq!(job.train_input.paths(), expected);
        resolve_beside_params(&mut job, Path::new("params.yaml"));
        assert_eq!(job.train_input.paths(), expected, "beside is the working directory");
    }
}
