//! How the elements of a group are kept in memory.

use std::ops::Range;

use super::activations::RoundKind;
use crate::graph::NodeId;
use crate::kernels::{Buffer, Context, PackedForm, Simd, convert};
use crate::numerics::{Precision, bf16};
use crate::packing::MatrixReader;
use crate::plan::{Encoding, GroupId, Pass, StreamPlan};

/// Parts begin at multiples of this many elements: a cache line.
const ALIGNMENT_ELEMENTS: usize = 16;

/// How a group is kept: a matrix that one operator reads in packed form is packed as its chunks arrive, for the pass
/// for which they are streamed; other tensors are kept as they are.
#[derive(Debug)]
pub(super) struct GroupLayout {
    parts: Vec<GroupPart>,
    /// Elements in memory, for each pass.
    lengths: [usize; 2],
    /// Whether the forward and the backward pass have memory of their own, because they read different packed forms.
    has_memory_by_pass: bool,
}

/// A tensor of a group.
#[derive(Debug)]
struct GroupPart {
    /// Elements of the group.
    elements: Range<usize>,
    /// How they are kept.
    form: PartForm,
}

#[derive(Debug)]
enum PartForm {
    /// As they are, from this element of the memory on.
    Plain(usize),
    /// Packed for the operator `node`, in one or more ways for each pass.
    Matrix { node: NodeId, packs: [Vec<PackPlace>; 2] },
}

/// A packed form of a matrix.
#[derive(Debug)]
pub(super) struct PackPlace {
    /// The pass of the operator that reads it.
    pub operator_pass: Pass,
    /// First element in memory.
    pub start: usize,
    pub form: PackedForm,
}

impl PackPlace {
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.form.len()
    }
}

impl GroupLayout {
    /// Creates the layout of a group. `readers` are the [readers](crate::packing::matrix_readers) of matrices that are
    /// packed while they arrive; `kinds` are the rounds in which the group is used.
    pub fn new(
        plan: &StreamPlan,
        group: GroupId,
        readers: &[Option<MatrixReader>],
        simd: Simd,
        kinds: &[RoundKind],
    ) -> Self {
        let tensors = &plan.groups[group].tensors;
        let mut layout = Self { parts: Vec::new(), lengths: [0; 2], has_memory_by_pass: false };
        let mut start = 0;
        for (_, elements) in tensors.iter().filter(|(tensor, _)| readers[*tensor].is_none()) {
            layout.parts.push(GroupPart { elements: elements.clone(), form: PartForm::Plain(start) });
            start += elements.len();
        }
        layout.lengths = [start.next_multiple_of(ALIGNMENT_ELEMENTS); 2];
        for (tensor, elements) in tensors {
            let Some(reader) = readers[*tensor] else { continue };
            let shape = &plan.graph.tensors[*tensor].shape;
            let packs = [Pass::Forward, Pass::Backward].map(|pass| {
                let forms = packed_forms(reader, pass, (shape[0], shape[1]), simd, plan.encoding.into(), kinds);
                forms.map(|(operator_pass, form)| layout.place(pass, operator_pass, form)).collect()
            });
            let form = PartForm::Matrix { node: reader.node, packs };
            layout.parts.push(GroupPart { elements: elements.clone(), form });
            layout.has_memory_by_pass = true;
        }
        layout
    }

    /// Finds a place for a packed form after the others of the same pass.
    fn place(&mut self, pass: Pass, operator_pass: Pass, form: PackedForm) -> PackPlace {
        let length = &mut self.lengths[pass as usize];
        let start = *length;
        *length += form.len().next_multiple_of(ALIGNMENT_ELEMENTS);
        PackPlace { operator_pass, start, form }
    }

    /// Returns whether the forward and the backward pass have memory of their own.
    pub const fn has_memory_by_pass(&self) -> bool {
        self.has_memory_by_pass
    }

    /// Returns the elements in memory for a pass.
    pub const fn len(&self, pass: Pass) -> usize {
        self.lengths[pass as usize]
    }

    /// Returns the place of elements that are kept as they are; `None` if they are not.
    pub fn plain(&self, elements: &Range<usize>) -> Option<Range<usize>> {
        self.parts.iter().find_map(|part| match part.form {
            PartForm::Plain(start) if part.elements == *elements => Some(start..start + elements.len()),
            _ => None,
        })
    }

    /// Returns the operators whose matrices are packed, each with the number of the part that is its matrix.
    pub fn matrices(&self) -> impl Iterator<Item = (NodeId, usize)> {
        self.parts.iter().enumerate().filter_map(|(number, part)| match part.form {
            PartForm::Plain(_) => None,
            PartForm::Matrix { node, .. } => Some((node, number)),
        })
    }

    /// Returns the packed form of a matrix that its operator reads, in its pass `operator_pass`, while `pass` of the
    /// layer is computed; `None` if it reads none.
    pub fn pack(&self, number: usize, pass: Pass, operator_pass: Pass) -> Option<&PackPlace> {
        match &self.parts[number].form {
            PartForm::Plain(_) => None,
            PartForm::Matrix { packs, .. } => {
                packs[pass as usize].iter().find(|pack| pack.operator_pass == operator_pass)
            }
        }
    }

    /// Stores elements from `first` on in `memory`, that of `pass`. `payload` has whole elements. `converted` is
    /// scratch memory.
    pub fn store(
        &self,
        cx: Context<'_>,
        pass: Pass,
        first: usize,
        (encoding, payload): (Encoding, &[u8]),
        memory: &mut [f32],
        converted: &mut Buffer,
    ) {
        let end = first + payload.len() / encoding.bytes();
        for part in &self.parts {
            let (from, to) = (part.elements.start.max(first), part.elements.end.min(end));
            if from >= to {
                continue;
            }
            let payload = &payload[(from - first) * encoding.bytes()..(to - first) * encoding.bytes()];
            let in_part = from - part.elements.start;
            match &part.form {
                PartForm::Plain(start) => {
                    let out = &mut memory[start + in_part..][..to - from];
                    read(cx.simd, encoding, payload, out);
                }
                PartForm::Matrix { packs, .. } => {
                    let values = rounded_values(cx, encoding, payload, converted);
                    for pack in &packs[pass as usize] {
                        pack.form.put(cx, in_part, values, &mut memory[pack.range()]);
                    }
                }
            }
        }
    }
}

/// Returns the packed forms of a matrix that its reader needs in a pass of the layer, each with the pass of the
/// operator that reads it: a layer that is recomputed has both in its backward pass.
fn packed_forms(
    reader: MatrixReader,
    pass: Pass,
    shape: (usize, usize),
    simd: Simd,
    precision: Precision,
    kinds: &[RoundKind],
) -> impl Iterator<Item = (Pass, PackedForm)> {
    let MatrixReader { layer, node } = reader;
    let is_executed = move |operator_pass: &Pass| {
        let mut steps = kinds.iter().flat_map(|kind| kind.steps(pass, layer));
        steps.any(|step| step.operator() == Some((node, *operator_pass)))
    };
    let executed = [Pass::Forward, Pass::Backward].into_iter().filter(is_executed);
    executed.map(move |operator_pass| {
        let is_transposed = operator_pass == Pass::Forward;
        (operator_pass, PackedForm::new(simd, precision, shape, is_transposed))
    })
}

/// Decodes a payload.
fn read(simd: Simd, encoding: Encoding, payload: &[u8], out: &mut [f32]) {
    match encoding {
        Encoding::F32 => convert::read_f32(simd, payload, out),
        Encoding::Bf16 => convert::read_bf16(simd, payload, out),
    }
}

/// Returns the elements of a payload, rounded to the precision of products: the payload itself, if possible, otherwise
/// a copy in `converted`.
fn rounded_values<'a>(cx: Context<'_>, encoding: Encoding, payload: &'a [u8], converted: &'a mut Buffer) -> &'a [f32] {
    let is_rounded = encoding == Encoding::Bf16 || cx.precision == Precision::F32;
    if let (Encoding::F32, true, true) = (encoding, is_rounded, cfg!(target_endian = "little"))
        && let Ok(values) = bytemuck::try_cast_slice(payload)
    {
        return values;
    }
    let values = converted.resize(payload.len() / encoding.bytes());
    read(cx.simd, encoding, payload, values);
    if !is_rounded {
        values.iter_mut().for_each(|value| *value = bf16::round(*value));
    }
    values
}
