//! Where relative data paths start: beside the params file where something is found there, else at the working
//! directory. The client `millrace` looks for small texts in the same two places, in the same order.

use std::path::Path;

use millrace_data::MATCH_OPTIONS;
use millrace_params::Job;

/// Has each relative data path of `job` that names something beside the params file `params` start there.
pub fn start_beside_params(job: &mut Job, params: &Path) {
    let Some(dir) = params.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return };
    let inputs = [Some(&mut job.train_input), job.eval_input.as_mut()];
    for path in inputs.into_iter().flatten().filter_map(|input| input.paths_mut()).flatten() {
        let beside = dir.join(path.as_str());
        // A name that is not UTF-8 has no form in a job.
        if let Some(beside) = beside.to_str().filter(|beside| Path::new(path).is_relative() && is_there(beside)) {
            *path = beside.to_owned();
        }
    }
}

/// Whether there is a file or directory of this name, or one that it matches as a glob.
fn is_there(name: &str) -> bool {
    Path::new(name).exists()
        || glob::glob_with(name, MATCH_OPTIONS)
            .is_ok_and(|mut found| found.any(|path| path.is_ok_and(|path| path.is_file())))
}

#[cfg(test)]
mod tests {
    use millrace_params::{Overrides, Params};

    use super::*;

    #[test]
    fn what_lies_beside_the_params_goes_before_the_working_directory() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("texts")).unwrap();
        for name in ["own.txt", "texts/a.txt"] {
            std::fs::write(home.path().join(name), "text").unwrap();
        }
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-kjv.yaml")).unwrap();
        let mut job = Params::parse_yaml(&text).and_then(|params| params.resolve(&Overrides::default())).unwrap().job;
        let paths = ["own.txt", "texts/*.txt", "texts", "elsewhere/*.txt", "Cargo.toml", "/own.txt"];
        let millrace_params::Source::Text { paths: all, .. } = &mut job.train_input.source else { panic!("no text") };
        *all = paths.map(str::to_owned).to_vec();
        let beside = |name: &str| home.path().join(name).display().to_string();
        let mut expected = paths.map(str::to_owned);
        for own in &mut expected[..3] {
            *own = beside(own);
        }
        start_beside_params(&mut job, &home.path().join("params.yaml"));
        assert_eq!(job.train_input.paths(), expected);
        start_beside_params(&mut job, Path::new("params.yaml"));
        assert_eq!(job.train_input.paths(), expected, "beside is the working directory");
    }
}
