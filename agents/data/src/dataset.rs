//! Reads samples by number.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use millrace_params::ImageSource;

use crate::arrays::ArrayStore;
use crate::cache::{self, CacheDir, CacheOutcome};
use crate::encoder::EncoderSource;
use crate::files::expand;
use crate::hdf5::{ExpectedSamples, Hdf5Size, Hdf5Store};
use crate::images::ImageStore;
use crate::inspect::inspect_files;
use crate::mixture::MixtureOrder;
use crate::order::SampleOrder;
use crate::python_package::{PythonPackage, PythonProblem, PythonSource, SampleReader};
use crate::seq2seq::Seq2SeqSource;
use crate::spec::MixturePart;
use crate::split::{order_of, split_range, windows_of_split};
use crate::synthetic::{self, Synthetic};
use crate::text::Corpus;
use crate::tfrecord::{TfRecordFiles, TfRecordStore, record_files};
use crate::token_store::TokenStore;
use crate::{DataError, SinkTokens, SourceKind, SourceSpec, TextFiles, TfRecordRows};

/// An open data source: a pure function from sample number to tokens.
///
/// Reading takes `&self`, keeps no state that changes a sample, and is thread-safe.
pub struct Dataset {
    content: DatasetContent,
    /// Tokens per sample (T).
    seq_len: usize,
    /// Whether a sample may contain several sequences.
    is_packed: bool,
    fingerprint: [u8; 32],
    cache: CacheOutcome,
}

enum DatasetContent {
    Source(OrderedSource),
    Encoder(Box<EncoderSource>),
    Seq2Seq(Box<Seq2SeqSource>),
    Images {
        store: ImageStore,
        order: SampleOrder,
    },
    Arrays {
        store: ArrayStore,
        order: SampleOrder,
    },
    Python(Box<PythonSource>),
    /// A dataset into whose samples tokens are inserted.
    WithSinks(Box<Dataset>, SinkTokens),
    Mixture {
        order: MixtureOrder,
        members: Vec<Dataset>,
        /// Number of samples in a pass.
        samples: u64,
    },
}

/// The windows of a source in the order in which they are read.
struct OrderedSource {
    source: TokenSource,
    /// Index of the first token of the split.
    first_token: u64,
    order: SampleOrder,
}

enum TokenSource {
    Stored(TokenStore),
    Hdf5(Hdf5Store),
    Records(TfRecordStore),
    Synthetic(Synthetic),
}

impl Dataset {
    /// Opens the source and tokenizes text that is not cached.
    ///
    /// `progress` receives (bytes done, total bytes), starting with zero bytes done and ending with all, while text is
    /// tokenized or token files are read. It is not called for cached text and for HDF5 files.
    pub fn open(spec: &SourceSpec, mut progress: impl FnMut(u64, u64)) -> Result<Self, DataError> {
        spec.check()?;
        if let Some(sinks) = spec.sinks {
            return Self::open_with_sinks(spec, sinks, progress);
        }
        if let Some(samples) = &spec.encoder {
            let source = EncoderSource::open(spec, samples, progress)?;
            let fingerprint = source.fingerprint;
            let content = DatasetContent::Encoder(Box::new(source));
            return Ok(Self::of(spec, content, fingerprint, CacheOutcome::NotNeeded));
        }
        if let Some(samples) = &spec.seq2seq {
            let source = Seq2SeqSource::open(spec, samples, progress)?;
            let fingerprint = source.fingerprint;
            let content = DatasetContent::Seq2Seq(Box::new(source));
            return Ok(Self::of(spec, content, fingerprint, CacheOutcome::NotNeeded));
        }
        let (source, cache) = match &spec.kind {
            SourceKind::Text(text) => {
                let (store, cache) = open_text(spec, text, &mut progress)?;
                (TokenSource::Stored(store), cache)
            }
            SourceKind::Tokens { paths, token_type } => {
                let files = expand(paths, "bin")?;
                inspect_files(&spec.kind, &files)?;
                let store = TokenStore::open_files(&files, *token_type, &mut progress)?;
                (TokenSource::Stored(store), CacheOutcome::NotNeeded)
            }
            SourceKind::Hdf5 { paths, mixture, vocab_size } if !mixture.is_empty() => {
                return Self::open_mixture(spec, paths, mixture, *vocab_size);
            }
            SourceKind::Hdf5 { paths, vocab_size, .. } => {
                let expected =
                    ExpectedSamples { length: spec.seq_len, is_packed: spec.is_packed, is_for_encoder: false };
                let store = Hdf5Store::open(&expand(paths, "h5")?, expected, *vocab_size)?;
                (TokenSource::Hdf5(store), CacheOutcome::NotNeeded)
            }
            SourceKind::TfRecords { paths, rows: TfRecordRows::Tokens, vocab_size, .. } => {
                let files = TfRecordFiles::open(&record_files(paths, TfRecordRows::Tokens)?)?;
                let store = TfRecordStore { files, vocab_size: *vocab_size };
                (TokenSource::Records(store), CacheOutcome::NotNeeded)
            }
            SourceKind::Csv { .. }
            | SourceKind::TfRecords { .. }
            | SourceKind::EncoderHdf5 { .. }
            | SourceKind::Lines(_) => return Err(DataError::NotForDecoders),
            SourceKind::Images { paths, images } => return Self::open_images(spec, paths, images),
            SourceKind::Arrays { paths } => return Self::open_arrays(spec, paths),
            SourceKind::Python { paths } => return Self::open_python(spec, paths),
            SourceKind::Synthetic { vocab_size, seed } => {
                (TokenSource::Synthetic(Synthetic::new(*vocab_size, *seed)), CacheOutcome::NotNeeded)
            }
        };
        let (first_token, windows) = split_windows(spec, &source)?;
        let source = OrderedSource { order: order_of(spec, windows)?, source, first_token };
        let fingerprint = source.fingerprint(spec.seq_len);
        source.check_first_window(spec.seq_len)?;
        Ok(Self::of(spec, DatasetContent::Source(source), fingerprint, cache))
    }

    fn of(spec: &SourceSpec, content: DatasetContent, fingerprint: [u8; 32], cache: CacheOutcome) -> Self {
        Self { content, seq_len: spec.seq_len, is_packed: spec.is_packed, fingerprint, cache }
    }

    /// Opens the source of samples that tokens are inserted into.
    fn open_with_sinks(
        spec: &SourceSpec,
        sinks: SinkTokens,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, DataError> {
        let samples = Self::open(&spec.without_sinks(sinks), progress)?;
        let mut hasher = blake3::Hasher::new_derive_key("millrace samples with sinks, version 1");
        hasher.update(&samples.fingerprint);
        sinks.hash(&mut hasher);
        let (fingerprint, cache) = (*hasher.finalize().as_bytes(), samples.cache.clone());
        let content = DatasetContent::WithSinks(Box::new(samples), sinks);
        Ok(Self::of(spec, content, fingerprint, cache))
    }

    /// Opens images, and reads the first one.
    fn open_images(spec: &SourceSpec, paths: &[String], images: &ImageSource) -> Result<Self, DataError> {
        let store = ImageStore::open(paths, images, spec.shuffle_seed)?;
        let order = order_of(spec, 0..store.count())?;
        store.read(order.first_window(), 0)?;
        let mut hasher = blake3::Hasher::new_derive_key("millrace images, version 1");
        store.hash(&mut hasher);
        order.hash(&mut hasher);
        let fingerprint = *hasher.finalize().as_bytes();
        let content = DatasetContent::Images { store, order };
        Ok(Self::of(spec, content, fingerprint, CacheOutcome::NotNeeded))
    }

    /// Opens arrays, and reads the first sample.
    fn open_arrays(spec: &SourceSpec, paths: &[String]) -> Result<Self, DataError> {
        let store = ArrayStore::open(paths)?;
        let order = order_of(spec, split_range(spec, store.count()))?;
        store.read(order.first_window(), &mut vec![Vec::new(); store.inputs().len()])?;
        let mut hasher = blake3::Hasher::new_derive_key("millrace arrays, version 1");
        store.hash(&mut hasher);
        order.hash(&mut hasher);
        let fingerprint = *hasher.finalize().as_bytes();
        let content = DatasetContent::Arrays { store, order };
        Ok(Self::of(spec, content, fingerprint, CacheOutcome::NotNeeded))
    }

    /// Opens the package of a Python dataset. Reads no sample, because that needs a [`SampleReader`].
    fn open_python(spec: &SourceSpec, paths: &[String]) -> Result<Self, DataError> {
        let package = PythonPackage::open(Path::new(paths.first().ok_or(DataError::NoPaths)?))?;
        let order = order_of(spec, split_range(spec, package.samples()))?;
        let is_iterated = !spec.shuffle && spec.subset.is_empty() && spec.validation_fraction == 0.0;
        if package.is_stream() && !is_iterated {
            let path = package.directory().to_owned();
            return Err(DataError::Python { path, problem: PythonProblem::StreamOrder });
        }
        let source = PythonSource::new(package, order, spec.shuffle_seed)?;
        let fingerprint = source.fingerprint;
        let content = DatasetContent::Python(Box::new(source));
        Ok(Self::of(spec, content, fingerprint, CacheOutcome::NotNeeded))
    }

    /// Opens the sources of a mixture of HDF5 files.
    fn open_mixture(
        spec: &SourceSpec,
        paths: &[String],
        mixture: &[MixturePart],
        vocab_size: u32,
    ) -> Result<Self, DataError> {
        let members = member_paths(paths, mixture).map(|paths| {
            let kind = SourceKind::Hdf5 { paths: paths.to_vec(), mixture: Vec::new(), vocab_size };
            Self::open(&SourceSpec { kind, num_samples: None, ..spec.clone() }, |_, _| {})
        });
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let weights: Vec<u32> = mixture.iter().map(|part| part.weight).collect();
        let order = MixtureOrder::new(&weights);
        let sizes: Vec<u64> = members.iter().map(Self::windows).collect();
        let samples = spec.num_samples.unwrap_or_else(|| order.samples_in_one_pass(&sizes));
        if samples == 0 {
            return Err(DataError::NoSamples { split: spec.split, has_subset: false });
        }
        let mut hasher = blake3::Hasher::new_derive_key("millrace mixture, version 1");
        for (member, weight) in members.iter().zip(weights) {
            hasher.update(&member.fingerprint).update(&weight.to_le_bytes());
        }
        let fingerprint = *hasher.update(&samples.to_le_bytes()).finalize().as_bytes();
        let content = DatasetContent::Mixture { order, members, samples };
        Ok(Self::of(spec, content, fingerprint, CacheOutcome::NotNeeded))
    }

    /// Returns the tokens of `input_ids` and of `labels` in one sample (T).
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Returns the number of samples in one pass, at least 1: the windows of the split, unless
    /// [`SourceSpec::num_samples`] is another number. A pass over a mixture ends when a source would be read a second
    /// time.
    pub fn windows(&self) -> u64 {
        match &self.content {
            DatasetContent::Source(source) => source.order.samples_per_pass(),
            DatasetContent::Encoder(source) => source.samples_per_pass(),
            DatasetContent::Seq2Seq(source) => source.samples_per_pass(),
            DatasetContent::Images { order, .. } | DatasetContent::Arrays { order, .. } => order.samples_per_pass(),
            DatasetContent::Python(source) => source.order.samples_per_pass(),
            DatasetContent::WithSinks(samples, _) => samples.windows(),
            DatasetContent::Mixture { samples, .. } => *samples,
        }
    }

    /// Returns whether a pass over the samples does not end: of a stream without [`SourceSpec::num_samples`].
    pub fn is_endless(&self) -> bool {
        let stream = self.python_package().filter(|package| package.is_stream());
        stream.is_some_and(|package| self.windows() == package.samples())
    }

    /// Returns the largest token of the source, both splits together; of images, the largest class; of arrays and
    /// Python datasets, 0. For HDF5 files, whose tokens are checked when they are read, it is the largest token of the
    /// vocabulary.
    pub fn max_token(&self) -> u32 {
        match &self.content {
            DatasetContent::Source(source) => match &source.source {
                TokenSource::Stored(store) => store.max_token,
                TokenSource::Hdf5(store) => store.vocab_size().saturating_sub(1),
                TokenSource::Records(store) => store.vocab_size.saturating_sub(1),
                TokenSource::Synthetic(synthetic) => synthetic.max_token(),
            },
            DatasetContent::Encoder(source) => source.vocab_size().saturating_sub(1),
            DatasetContent::Seq2Seq(source) => source.vocab_size().saturating_sub(1),
            DatasetContent::Images { store, .. } => store.classes().saturating_sub(1).try_into().unwrap_or(u32::MAX),
            // Systems check integers by the operators that read them.
            DatasetContent::Arrays { .. } | DatasetContent::Python(_) => 0,
            DatasetContent::WithSinks(samples, sinks) => samples.max_token().max(sinks.token),
            DatasetContent::Mixture { members, .. } => members.iter().map(Self::max_token).max().unwrap_or(0),
        }
    }

    /// Returns an error if the model's vocabulary does not contain every token of the source.
    pub fn check_vocab(&self, vocab_size: u64) -> Result<(), DataError> {
        let max_token = self.max_token();
        if u64::from(max_token) < vocab_size {
            Ok(())
        } else {
            Err(DataError::VocabularyTooSmall { vocab_size, max_token })
        }
    }

    /// Returns a digest of everything the samples depend on. Two data sets with the same fingerprint have the same
    /// samples, independent of the paths of their files. Of HDF5 files, which may be too large to be read, it covers
    /// only formats and sizes.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns what the token cache did when this was opened.
    pub fn cache(&self) -> &CacheOutcome {
        &self.cache
    }

    /// Writes sample `n`: T tokens to `input_ids` and, for each, the following token to `labels`. A label of HDF5
    /// samples that does not count is negative.
    ///
    /// Sample `n` is sample `n mod N` of pass `n / N`, N being the number of [`Dataset::windows`]. With shuffling, the
    /// order of a pass is the [`Permutation`](crate::Permutation) keyed by (shuffle seed, pass).
    ///
    /// # Errors
    /// An HDF5 file can't be read, or a token in it is not in the vocabulary; the samples are images. Other sources
    /// have no errors.
    ///
    /// # Panics
    /// If one of the slices is not T long.
    pub fn sample(&self, n: u64, input_ids: &mut [i32], labels: &mut [i32]) -> Result<(), DataError> {
        assert_eq!(
            (input_ids.len(), labels.len()),
            (self.seq_len, self.seq_len),
            "a sample has {} tokens",
            self.seq_len
        );
        match &self.content {
            DatasetContent::Source(source) => source.read(source.order.window(n), input_ids, labels),
            DatasetContent::Encoder(_) | DatasetContent::Seq2Seq(_) => Err(DataError::NotForDecoders),
            DatasetContent::Images { .. } | DatasetContent::Arrays { .. } | DatasetContent::Python(_) => {
                Err(DataError::NoTokens)
            }
            DatasetContent::WithSinks(samples, sinks) => {
                let mut sample = [vec![0; samples.seq_len], vec![0; samples.seq_len]];
                let [tokens, own_labels] = &mut sample;
                samples.sample(n, tokens, own_labels)?;
                sinks.insert([tokens, own_labels], input_ids, labels);
                Ok(())
            }
            DatasetContent::Mixture { order, members, .. } => {
                let (member, number) = order.locate(n);
                members[member].sample(number, input_ids, labels)
            }
        }
    }

    /// Writes packed sample `n`; see [`Hdf5Store::read_packed`].
    fn packed_sample(&self, n: u64, rows: [&mut Vec<i32>; 4]) -> Result<(), DataError> {
        match &self.content {
            DatasetContent::Source(OrderedSource { source: TokenSource::Hdf5(store), order, .. }) => {
                store.read_packed(order.window(n), rows.map(Vec::as_mut_slice))
            }
            DatasetContent::Mixture { order, members, .. } => {
                let (member, number) = order.locate(n);
                members[member].packed_sample(number, rows)
            }
            _ => Err(DataError::NotForDecoders),
        }
    }

    /// Returns the classes of tokens that label entities, if the classes have names.
    pub fn entity_classes(&self) -> Option<Vec<usize>> {
        if let DatasetContent::Encoder(source) = &self.content { source.entity_classes() } else { None }
    }

    /// Returns the inputs that a sample consists of, by the names that a model's graph has.
    pub fn inputs(&self) -> Vec<SampleInput> {
        let input = |name: &str, element_type, shape: &[usize]| SampleInput {
            name: name.to_owned(),
            element_type,
            shape: shape.to_vec(),
        };
        match &self.content {
            DatasetContent::Images { store, .. } => {
                vec![input("image", ElementType::F32, &store.dimensions()), input("labels", ElementType::I32, &[])]
            }
            DatasetContent::Arrays { store, .. } => store.inputs().to_vec(),
            DatasetContent::Python(source) => source.package.inputs().to_vec(),
            DatasetContent::Encoder(source) => source.inputs(),
            DatasetContent::Seq2Seq(source) => source.inputs(),
            DatasetContent::Source(_) | DatasetContent::Mixture { .. } | DatasetContent::WithSinks(..) => {
                let names = ["input_ids", "labels", "attention_span", "position_ids"];
                let names = &names[..if self.is_packed { 4 } else { 2 }];
                names.iter().map(|name| input(name, ElementType::I32, &[self.seq_len])).collect()
            }
        }
    }

    /// Returns the package of a Python dataset; `None` for other sources.
    pub fn python_package(&self) -> Option<&PythonPackage> {
        if let DatasetContent::Python(source) = &self.content { Some(&source.package) } else { None }
    }

    /// Sets what reads the samples of a Python dataset; does nothing for other sources.
    pub fn set_reader(&mut self, reader: Arc<dyn SampleReader>) {
        if let DatasetContent::Python(source) = &mut self.content {
            source.reader = Some(reader);
        }
    }

    /// Reads `count` samples from number `first` on: for each of [`Dataset::inputs`] its elements, sample after sample,
    /// each of four bytes, little-endian.
    ///
    /// # Errors
    /// A file can't be read, or contains an image or a token that the model does not accept.
    pub fn read(&self, first: u64, count: u32) -> Result<Vec<Vec<u8>>, DataError> {
        if let DatasetContent::Python(source) = &self.content {
            return source.read(first, count);
        }
        let bytes = |input: SampleInput| Vec::with_capacity(input.bytes().saturating_mul(count as usize));
        let mut arrays: Vec<Vec<u8>> = self.inputs().into_iter().map(bytes).collect();
        let mut sample_arrays = match &self.content {
            DatasetContent::Encoder(source) => source.empty(),
            DatasetContent::Seq2Seq(source) => source.empty(),
            _ => vec![vec![0; self.seq_len]; self.inputs().len()],
        };
        for sample in (0..u64::from(count)).map(|offset| first.saturating_add(offset)) {
            match (&self.content, sample_arrays.as_mut_slice()) {
                (DatasetContent::Images { store, order }, _) => {
                    let (pixels, class) = store.read(order.window(sample), sample)?;
                    let pixels = pixels.iter().flat_map(|pixel| pixel.to_le_bytes()).collect();
                    append_all(&mut arrays, [pixels, class.to_le_bytes().to_vec()]);
                    continue;
                }
                (DatasetContent::Arrays { store, order }, _) => {
                    store.read(order.window(sample), &mut arrays)?;
                    continue;
                }
                (DatasetContent::Encoder(source), sample_arrays) => source.read(sample, sample_arrays)?,
                (DatasetContent::Seq2Seq(source), sample_arrays) => source.read(sample, sample_arrays)?,
                (_, [input_ids, labels, spans, positions]) => {
                    self.packed_sample(sample, [input_ids, labels, spans, positions])?;
                }
                (_, [input_ids, labels]) => self.sample(sample, input_ids, labels)?,
                (_, _) => return Err(DataError::NoTokens),
            }
            append_all(&mut arrays, sample_arrays.iter().map(|array| integer_bytes(array)));
        }
        Ok(arrays)
    }
}

fn integer_bytes(integers: &[i32]) -> Vec<u8> {
    integers.iter().flat_map(|integer| integer.to_le_bytes()).collect()
}

fn append_all(arrays: &mut [Vec<u8>], parts: impl IntoIterator<Item = Vec<u8>>) {
    arrays.iter_mut().zip(parts).for_each(|(array, part)| array.extend_from_slice(&part));
}

/// An input that samples consist of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleInput {
    /// The name.
    pub name: String,
    /// Type of its elements.
    pub element_type: ElementType,
    /// Its dimensions; none for a single element.
    pub shape: Vec<usize>,
}

impl SampleInput {
    /// Returns the bytes of one sample.
    pub fn bytes(&self) -> usize {
        self.shape.iter().fold(4, |bytes: usize, &size| bytes.saturating_mul(size))
    }
}

/// Type of the elements of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit floating point.
    F32,
    /// 32-bit integers.
    I32,
}

impl OrderedSource {
    /// Reads a window of HDF5 files, so that a compression that can't be read is found before training begins.
    fn check_first_window(&self, seq_len: usize) -> Result<(), DataError> {
        let [mut input_ids, mut labels] = [vec![0; seq_len], vec![0; seq_len]];
        match &self.source {
            TokenSource::Hdf5(store) if store.is_packed() => {
                let [mut spans, mut positions] = [vec![0; seq_len], vec![0; seq_len]];
                let rows = [&mut input_ids, &mut labels, &mut spans, &mut positions].map(Vec::as_mut_slice);
                store.read_packed(self.order.first_window(), rows)
            }
            TokenSource::Hdf5(_) | TokenSource::Records(_) => {
                self.read(self.order.first_window(), &mut input_ids, &mut labels)
            }
            TokenSource::Stored(_) | TokenSource::Synthetic(_) => Ok(()),
        }
    }

    /// Reads a window of the source.
    fn read(&self, window: u64, input_ids: &mut [i32], labels: &mut [i32]) -> Result<(), DataError> {
        let token = self.first_token + window.saturating_mul(input_ids.len() as u64);
        match &self.source {
            TokenSource::Stored(store) => {
                store.copy(token, input_ids);
                store.copy(token + 1, labels);
            }
            TokenSource::Hdf5(store) => match store.size() {
                Hdf5Size::Samples(_) => store.read_sample(window, input_ids, labels)?,
                Hdf5Size::Tokens(_) => store.read_window(token, input_ids, labels)?,
            },
            TokenSource::Records(store) => store.read_sample(window, input_ids, labels)?,
            TokenSource::Synthetic(synthetic) => {
                let mut tokens = synthetic.window(window);
                let mut last = tokens.next().unwrap_or(0);
                for ((input, label), next) in input_ids.iter_mut().zip(labels).zip(tokens) {
                    *input = std::mem::replace(&mut last, next);
                    *label = next;
                }
            }
        }
        Ok(())
    }

    fn fingerprint(&self, seq_len: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("millrace samples, version 2");
        hasher.update(&match &self.source {
            TokenSource::Stored(store) => store.digest,
            TokenSource::Hdf5(store) => store.digest,
            TokenSource::Records(store) => store.files.digest,
            TokenSource::Synthetic(synthetic) => synthetic.digest(),
        });
        for number in [seq_len as u64, self.first_token] {
            hasher.update(&number.to_le_bytes());
        }
        self.order.hash(&mut hasher);
        *hasher.finalize().as_bytes()
    }
}

/// Returns the paths of each part of a mixture, which follow each other in `paths`.
fn member_paths<'a>(mut paths: &'a [String], mixture: &'a [MixturePart]) -> impl Iterator<Item = &'a [String]> {
    mixture.iter().map(move |part| {
        let (member, rest) = paths.split_at(part.paths.min(paths.len()));
        paths = rest;
        member
    })
}

fn open_text(
    spec: &SourceSpec,
    text: &TextFiles,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(TokenStore, CacheOutcome), DataError> {
    let files = expand(text.divided().0, "txt")?;
    inspect_files(&spec.kind, &files)?;
    let corpus = Corpus::open(&files, text.tokenizer()?, &text.text_key)?;
    let dir = CacheDir::from_environment(spec.cache_dir.as_deref());
    cache::open(&dir, corpus.key(), &mut |sink| corpus.tokenise(progress, sink))
}

/// Returns the first token and the windows of the split, in HDF5 files of this size.
fn windows_of_hdf5(spec: &SourceSpec, size: Hdf5Size) -> Result<(u64, Range<u64>), DataError> {
    match size {
        Hdf5Size::Samples(samples) => Ok((0, split_range(spec, samples))),
        Hdf5Size::Tokens(tokens) => {
            let (first_token, windows) = windows_of_split(spec, tokens)?;
            Ok((first_token, 0..windows))
        }
    }
}

/// Returns the first token and the windows of the split.
fn split_windows(spec: &SourceSpec, source: &TokenSource) -> Result<(u64, Range<u64>), DataError> {
    match source {
        TokenSource::Stored(store) => {
            let (first_token, windows) = windows_of_split(spec, store.len())?;
            Ok((first_token, 0..windows))
        }
        TokenSource::Hdf5(store) => windows_of_hdf5(spec, store.size()),
        TokenSource::Records(store) => Ok((0, split_range(spec, store.files.records()))),
        TokenSource::Synthetic(_) => {
            let windows = split_range(spec, synthetic::SYNTHETIC_WINDOWS);
            if windows.is_empty() {
                return Err(DataError::TooShort { split: spec.split, tokens: 0, needed: spec.seq_len as u64 + 1 });
            }
            Ok((0, windows))
        }
    }
}
