//! Reads a submission from the body of a request.
//!
//! ```text
//!  application/json, application/yaml    a TrainJob                              ┐
//!  multipart/form-data                   params  the user's params file          ├──► SubmitRequest
//!                                        job     metadata and fields of the spec │
//!                                        file    files that the params name      ┘
//! ```
//!
//! * The request counts against its account's budget before its body is read.
//! * The body is received within a time limit, and parsed on the threads for expensive work.
//! * Every part has a size limit, and every name is checked before a file is written.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::HeaderMap;
use kube::Resource;
use millrace_crds::{StoredParams, TRACEPARENT_ANNOTATION, TrainJob};
use millrace_params::PhasedParams;
use millrace_store::IdempotencyKey;
use millrace_traces::TraceParent;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::auth::Principal;
use super::body::{
    malformed_body, media_type, parse_json, read_all, read_part, unsupported_media_type, with_body_timeout,
};
use super::named_uploads::{MAX_NAMED_UPLOADS, NamedUpload, attach_named_uploads};
use super::overrides::{apply_overrides, end_at_step, fill_from_runconfig};
use super::uploads::{attach_uploads, name_uploads};
use super::{ALL_NAMESPACES, AppState};
use crate::error::{ApiError, ErrorReason, FieldError, Result};
use crate::submission::{BODY_DIGEST_ANNOTATION, KEY_ANNOTATION, SUBMITTED_BY_ANNOTATION, SubmitRequest, UploadedFile};

/// Header that makes a request safe to repeat.
const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// Limit on a job, as a TrainJob, as params or as the options in the part `job`: the size of an object that an API
/// server of Kubernetes accepts.
pub const MAX_JOB_BYTES: usize = 1 << 20;
/// Limit on the number of uploads in a form.
pub const MAX_FILES: usize = 1024;
/// Maximum length of the name of a job, number of characters of its generated suffix, and what is left for the prefix.
const MAX_NAME_LENGTH: usize = 63;
const NAME_SUFFIX_LENGTH: usize = 8;
const MAX_NAME_PREFIX_LENGTH: usize = MAX_NAME_LENGTH - NAME_SUFFIX_LENGTH;
/// Limit on `metadata.generateName`, as in Kubernetes; what exceeds [`MAX_NAME_PREFIX_LENGTH`] is cut off, as there.
const MAX_GENERATE_NAME_BYTES: usize = 253;
/// Fields of an object's metadata that only the server sets.
const SERVER_SET_METADATA: [&str; 11] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Prefix of the annotations that the server sets, and all of these annotations.
const RESERVED_ANNOTATION_PREFIX: &str = "millrace.dev/";
const SERVER_ANNOTATIONS: [&str; 4] =
    [BODY_DIGEST_ANNOTATION, KEY_ANNOTATION, SUBMITTED_BY_ANNOTATION, TRACEPARENT_ANNOTATION];

/// Options of a submission of params.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitOptions {
    /// Metadata of the TrainJob.
    #[serde(default)]
    metadata: Map<String, Value>,
    /// Spec of the TrainJob without the params.
    #[serde(default)]
    spec: Map<String, Value>,
    /// Uploads that stand for files that the params name: they become `spec.model` and `spec.files`.
    #[serde(default)]
    #[schemars(length(max = MAX_NAMED_UPLOADS))]
    uploads: Vec<NamedUpload>,
    /// Values that override the params file, by their keys in runconfig; `model` is the family of a model that the
    /// params do not name.
    #[serde(default)]
    overrides: Map<String, Value>,
}

/// The field of a spec with the params of the phases that follow the first one.
const LATER_PHASES: &str = "laterPhases";

/// The key of params in the `trainer` layout.
const TRAINER_LAYOUT: &str = "trainer";

/// Reads the job that `principal` submits to namespace `ns`. The documents are parsed by the pool for expensive work.
///
/// # Errors
/// The body can't be read, the params are invalid, or a limit of the pool or of the account is exceeded
/// ([`ErrorReason::TooManyRequests`]).
pub async fn read_submission(
    api: &AppState,
    ns: &str,
    principal: &Principal,
    request: Request,
) -> Result<SubmitRequest> {
    let slot = api.compute.admit(&principal.account)?;
    let submission = Submission::receive(ns, &principal.name, &principal.account, request).await?;
    api.compute.run_admitted(slot, move || submission.into_request()).await
}

/// A request to create a job, completely received and not parsed yet.
pub struct Submission {
    namespace: String,
    submitter: String,
    account: String,
    /// The idempotency key of the request.
    key: Option<String>,
    sent: RequestBody,
    /// The span of the request, if traces are exported.
    trace: Option<TraceParent>,
}

impl Submission {
    /// Receives the body of a request to create a job in namespace `ns`.
    ///
    /// # Errors
    /// The body is too slow, too long or of an unsupported media type; `ns` stands for all namespaces; the idempotency
    /// key is invalid.
    pub async fn receive(ns: &str, submitter: &str, account: &str, request: Request) -> Result<Self> {
        if ns == ALL_NAMESPACES {
            let message = "a job is created in one namespace".to_owned();
            return Err(ApiError::invalid(vec![FieldError { field: "metadata.namespace".to_owned(), message }]));
        }
        let key = idempotency_key(request.headers())?;
        let sent = with_body_timeout(receive(request)).await?;
        let [namespace, submitter, account] = [ns, submitter, account].map(str::to_owned);
        Ok(Self { namespace, submitter, account, key, sent, trace: TraceParent::current() })
    }

    /// Parses the documents of the body and completes the job. CPU-bound: the time grows with the length of the body.
    ///
    /// # Errors
    /// A document can't be read, the params are invalid, or the object has another kind or namespace, or an annotation
    /// below `millrace.dev/` that the server does not set.
    pub fn into_request(self) -> Result<SubmitRequest> {
        let Self { namespace, submitter, account, key, sent, trace } = self;
        let (mut object, uploads, hash, stem) = sent.read()?;
        // The submitter is a part of the hash: a key belongs to one account.
        let hash = blake3::Hasher::new().update(hash.as_bytes()).update(submitter.as_bytes()).finalize();
        let key = key.map(|key| IdempotencyKey { key, body_hash: hash.to_hex().to_string() });
        complete(&mut object, &namespace, &submitter, key.as_ref(), stem.as_deref())?;
        if let Some(trace) = trace {
            object["metadata"]["annotations"][TRACEPARENT_ANNOTATION] = trace.to_string().into();
        }
        let uploads = name_uploads(&mut object, uploads)?;
        Ok(SubmitRequest {
            namespace,
            object: Arc::new(object),
            uploads,
            submitter,
            account,
            key,
            may_create: true,
            is_server_user: false,
        })
    }
}

/// A body that has been received and is not parsed yet.
enum RequestBody {
    Json(Bytes),
    Yaml(Bytes),
    Form(Box<FormParts>),
}

#[derive(Default)]
struct FormParts {
    params: Option<Bytes>,
    options: Option<Bytes>,
    files: Vec<(String, Bytes)>,
    /// Name of the params file without its extension; `None` if it is `params`.
    stem: Option<String>,
    /// Digest of all parts with their names and file names.
    digest: blake3::Hasher,
}

async fn receive(request: Request) -> Result<RequestBody> {
    let kind = media_type(request.headers())?;
    match kind.as_str() {
        "application/json" | "" => Ok(RequestBody::Json(check_size(read_all(request).await?)?)),
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            Ok(RequestBody::Yaml(check_size(read_all(request).await?)?))
        }
        "multipart/form-data" => Ok(RequestBody::Form(Box::new(FormParts::receive(request).await?))),
        other => Err(unsupported_media_type(other, "application/json, application/yaml or multipart/form-data")),
    }
}

/// Rejects a document longer than [`MAX_JOB_BYTES`].
fn check_size(document: Bytes) -> Result<Bytes> {
    if document.len() <= MAX_JOB_BYTES {
        return Ok(document);
    }
    let detail = format!(
        "a job has at most {MAX_JOB_BYTES} bytes, and this one has {}: name data by directories or globs instead of \
         single files",
        document.len()
    );
    Err(ApiError::new(ErrorReason::PayloadTooLarge, detail))
}

impl RequestBody {
    /// Returns the object, the uploads, the digest of the body, and the name of the params file (forms only).
    fn read(self) -> Result<(Value, Vec<UploadedFile>, blake3::Hash, Option<String>)> {
        match self {
            Self::Json(body) => Ok((parse_json("JSON", &body)?, Vec::new(), blake3::hash(&body), None)),
            Self::Yaml(body) => {
                let text = std::str::from_utf8(&body).map_err(|error| malformed_body("YAML", &error))?;
                let object = serde_saphyr::from_str(text).map_err(|error| malformed_body("YAML", &error))?;
                Ok((object, Vec::new(), blake3::hash(&body), None))
            }
            Self::Form(form) => form.read(),
        }
    }
}

/// Fills in what a client may leave out, and sets what only the server sets.
fn complete(
    object: &mut Value,
    ns: &str,
    submitter: &str,
    key: Option<&IdempotencyKey>,
    stem: Option<&str>,
) -> Result<()> {
    let Value::Object(all) = object else {
        return Err(ApiError::new(ErrorReason::BadRequest, "the body is not an object: send a TrainJob"));
    };
    all.remove("status");
    let (kind, version) = (TrainJob::kind(&()), TrainJob::api_version(&()));
    all.entry("apiVersion").or_insert_with(|| json!(version));
    all.entry("kind").or_insert_with(|| json!(kind));
    let fault = |field: &str, message: &str| {
        Err(ApiError::invalid(vec![FieldError { field: field.to_owned(), message: message.to_owned() }]))
    };
    if all["apiVersion"] != *version || all["kind"] != *kind {
        return fault("kind", &format!("expected a {kind} of {version}"));
    }
    if let Some(spec) = all.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(params) = spec.get("params")
    {
        let read = PhasedParams::read_json(params)
            .map_err(|error| ApiError::new(ErrorReason::BadParams, error.report().trim_end()))?;
        if !read.later.is_empty() && spec.contains_key(LATER_PHASES) {
            return fault("spec.laterPhases", "excludes params with several phases: give one of them");
        }
        // A TrainJob stores the classic layout: its definition and other readers know no other.
        if params.get(TRAINER_LAYOUT).is_some() {
            let phases = stored_phases(&read);
            store_phases(spec, phases);
        }
    }
    let Value::Object(metadata) = all.entry("metadata").or_insert_with(|| json!({})) else {
        return fault("metadata", "an object");
    };
    if metadata.get("namespace").is_some_and(|given| given != ns) {
        return fault("metadata.namespace", "differs from the namespace in the URL: use the same, or leave it out");
    }
    // Fields that only the server sets are dropped, not rejected: a client may send an object that it has read.
    metadata.retain(|name, value| !SERVER_SET_METADATA.contains(&name.as_str()) && !value.is_null());
    for words in ["labels", "annotations"] {
        if let Some(Value::Object(words)) = metadata.get_mut(words) {
            words.retain(|_, value| !value.is_null());
        }
    }
    if metadata.get("name") == Some(&json!("")) {
        metadata.remove("name");
    }
    metadata.insert("namespace".to_owned(), ns.into());
    if !metadata.contains_key("name") {
        let key = key.map(|key| key.key.as_str());
        let name = match metadata.get("generateName") {
            None => generate_name(stem.unwrap_or("job"), key),
            Some(Value::String(begin)) if begin.len() > MAX_GENERATE_NAME_BYTES => {
                return fault("metadata.generateName", &format!("at most {MAX_GENERATE_NAME_BYTES} characters"));
            }
            Some(Value::String(begin)) => {
                format!("{}{}", begin.chars().take(MAX_NAME_PREFIX_LENGTH).collect::<String>(), name_suffix(key))
            }
            Some(_) => return fault("metadata.generateName", "a text, the beginning of the name"),
        };
        metadata.insert("name".to_owned(), name.into());
    }
    let Value::Object(annotations) = metadata.entry("annotations").or_insert_with(|| json!({})) else {
        return fault("metadata.annotations", "an object");
    };
    if let Some(name) = annotations
        .keys()
        .find(|name| name.starts_with(RESERVED_ANNOTATION_PREFIX) && !SERVER_ANNOTATIONS.contains(&name.as_str()))
    {
        return fault("metadata.annotations", &format!("{name}: the prefix {RESERVED_ANNOTATION_PREFIX} is reserved"));
    }
    // An object that was read from the server has these annotations of an earlier submission.
    SERVER_ANNOTATIONS.iter().for_each(|name| drop(annotations.remove(*name)));
    annotations.insert(SUBMITTED_BY_ANNOTATION.to_owned(), submitter.into());
    if let Some(key) = key {
        annotations.insert(KEY_ANNOTATION.to_owned(), key.key.clone().into());
        annotations.insert(BODY_DIGEST_ANNOTATION.to_owned(), key.body_hash.clone().into());
    }
    Ok(())
}

/// Returns the suffix of a generated name. With a key it is derived from the key, so that a repeated request gets the
/// same name and creates no second job even if the database is lost; without one it is random.
fn name_suffix(key: Option<&str>) -> String {
    let seed = key.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    blake3::hash(seed.as_bytes()).to_hex()[..NAME_SUFFIX_LENGTH].to_owned()
}

/// Generates a name from the one of the params file.
fn generate_name(stem: &str, key: Option<&str>) -> String {
    let clean: String = stem
        .to_ascii_lowercase()
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .collect();
    let clean = clean.trim_matches(|letter: char| !letter.is_ascii_alphabetic());
    let clean = if clean.is_empty() { "job" } else { clean };
    let clean: String = clean.chars().take(MAX_NAME_PREFIX_LENGTH - 1).collect();
    format!("{}-{}", clean.trim_end_matches('-'), name_suffix(key))
}

impl FormParts {
    async fn receive(request: Request) -> Result<Self> {
        let mut parts = Multipart::from_request(request, &()).await.map_err(|error| bad_form(&error.body_text()))?;
        let (mut form, mut names) = (Self::default(), HashSet::new());
        while let Some(part) = parts.next_field().await.map_err(|error| bad_form(&error.body_text()))? {
            let (name, file) = (part.name().unwrap_or_default().to_owned(), part.file_name().map(str::to_owned));
            let bytes = read_part(part).await?;
            for piece in [name.as_bytes(), file.as_deref().unwrap_or_default().as_bytes(), &bytes[..]] {
                form.digest.update(&piece.len().to_le_bytes()).update(piece);
            }
            match name.as_str() {
                "params" if form.params.is_none() => {
                    form.stem = file.as_deref().and_then(stem_of);
                    form.params = Some(check_size(bytes)?);
                }
                "job" if form.options.is_none() => form.options = Some(check_size(bytes)?),
                "params" | "job" => return Err(bad_form(&format!("duplicate form part {name}"))),
                "file" if form.files.len() < MAX_FILES => {
                    let file = file.unwrap_or_default();
                    if !names.insert(file.clone()) {
                        return Err(bad_form(&format!("duplicate file {file}")));
                    }
                    form.files.push((file, bytes));
                }
                "file" => {
                    let detail =
                        format!("a form has at most {MAX_FILES} files: put data into a volume of the appliance");
                    return Err(ApiError::new(ErrorReason::PayloadTooLarge, detail));
                }
                other => return Err(bad_form(&format!("unknown form part {other}: use params, job and file"))),
            }
        }
        Ok(form)
    }

    /// Reads the params file and its options; see [`RequestBody::read`].
    fn read(self) -> Result<(Value, Vec<UploadedFile>, blake3::Hash, Option<String>)> {
        let Self { params, options, mut files, stem, digest } = self;
        let params = params.ok_or_else(|| bad_form(&"the part `params` is missing"))?;
        let bad_params = |detail: &str| ApiError::new(ErrorReason::BadParams, detail);
        let text = std::str::from_utf8(&params).map_err(|_| bad_params("the params are not UTF-8"))?;
        let mut inherited_bytes = 0;
        let read = PhasedParams::parse_yaml(text, |path| {
            let other = take_params_file(&mut files, path)?;
            inherited_bytes = path.len() + other.len();
            Ok(other)
        });
        let read = read.map_err(|error| bad_params(error.report().trim_end()))?;
        let mut phases = stored_phases(&read);
        let options = options.map(|bytes| parse_json::<SubmitOptions>("JSON in the part `job`", &bytes)).transpose()?;
        let SubmitOptions { metadata, mut spec, uploads, overrides } = options.unwrap_or_default();
        for key in ["params", LATER_PHASES] {
            if spec.contains_key(key) {
                let message = "the params are in the part `params`: leave these out".to_owned();
                return Err(ApiError::invalid(vec![FieldError { field: format!("spec.{key}"), message }]));
            }
        }
        apply_overrides(&mut phases, &overrides)?;
        fill_from_runconfig(&mut spec, &phases);
        let uploaded_files = attach_uploads(&mut phases, &mut spec, files, inherited_bytes)?;
        attach_named_uploads(&mut phases, &mut spec, uploads)?;
        // Now that the files of all phases have their names: a client uploads them without knowing which are left out.
        end_at_step(&mut phases, &overrides);
        store_phases(&mut spec, phases);
        let object = json!({"metadata": metadata, "spec": spec});
        Ok((object, uploaded_files, digest.finalize(), stem))
    }
}

/// Returns the params of each phase as a TrainJob stores them.
fn stored_phases(params: &PhasedParams) -> Vec<Value> {
    params.iter().map(|params| StoredParams::from(params).0).collect()
}

/// Enters the params of all phases into a spec.
fn store_phases(spec: &mut Map<String, Value>, phases: Vec<Value>) {
    let mut phases = phases.into_iter();
    spec.extend(phases.next().map(|first| ("params".to_owned(), first)));
    if phases.len() > 0 {
        spec.insert(LATER_PHASES.to_owned(), phases.collect());
    }
}

/// Takes the params file out of `files` that another one names by `path`.
///
/// # Errors
/// There is none, or it is too long or not UTF-8.
fn take_params_file(files: &mut Vec<(String, Bytes)>, path: &str) -> io::Result<String> {
    let found = files.iter().position(|(name, _)| name == path);
    let at = found.ok_or_else(|| io::Error::other("no file of this name was sent with the params"))?;
    let (_, content) = files.remove(at);
    if content.len() > MAX_JOB_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_JOB_BYTES} bytes")));
    }
    String::from_utf8(content.into()).map_err(|_| io::Error::other("it is not UTF-8 text"))
}

fn bad_form(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorReason::BadRequest, format!("the form can't be read: {error}"))
}

fn stem_of(file: &str) -> Option<String> {
    let stem = std::path::Path::new(file).file_stem()?.to_str()?;
    (stem != "params").then(|| stem.to_owned())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=255).contains(&text.len()));
    text.map(|text| Some(text.to_owned())).ok_or_else(|| {
        ApiError::new(ErrorReason::BadRequest, "an Idempotency-Key has 1 to 255 printable characters of ASCII")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_of_existing_job_is_not_reused() {
        let annotations = json!({TRACEPARENT_ANNOTATION: "not a traceparent", "example.com/note": "kept"});
        let mut object = json!({"metadata": {"name": "job", "annotations": annotations}});
        complete(&mut object, "team", "someone", None, None).unwrap();
        let kept = object["metadata"]["annotations"].as_object().unwrap();
        assert!(!kept.contains_key(TRACEPARENT_ANNOTATION) && kept["example.com/note"] == "kept", "{kept:?}");
    }

    #[test]
    fn generated_names_are_valid_and_depend_on_the_key() {
        assert_eq!(generate_name("gpt2-kjv", Some("k")), generate_name("gpt2-kjv", Some("k")));
        assert_ne!(generate_name("gpt2-kjv", Some("k")), generate_name("gpt2-kjv", Some("l")));
        assert_ne!(generate_name("gpt2-kjv", None), generate_name("gpt2-kjv", None));
        for stem in ["", "42", "Params (final)", &"x".repeat(200), "-a-", "é"] {
            let name = generate_name(stem, None);
            let good = name.len() <= MAX_NAME_LENGTH && name.starts_with(|letter: char| letter.is_ascii_lowercase());
            assert!(good && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-'), "{name}");
        }
    }
}
