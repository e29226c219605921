//! Files in the layout of the CPU kernels, so that loading packs nothing.
//!
//! Such a file is a GGUF file whose ternary matrices are panels, with projections stacked as a layer uses them
//! ([`names::panel_matrices`]), and that also holds the int8 copy of a dense output head. GGUF has no type for either, so
//! they are stored as I8, in lines of 256 bytes (128 with group scales), under names that only such files use.
//! Everything else is as in other files. Rows are in Hugging Face's order for every architecture.

use std::{collections::HashMap, ops::Range, sync::OnceLock};

use bitnet_kernels::{CopyForm, HeadCopy, KernelError, Panels, on_huge_pages};
use bitnet_tensor::DType;
use bitnet_tensor::{SharedBytes, TernaryTensor};

use crate::{
    ModelError,
    error::check_shape,
    files::{
        PackedSource,
        ggml_type::GgmlType,
        gguf::{Descriptor, Gguf},
    },
    names::{self, PanelMatrix},
    packing::grouped::GROUPS,
    spec::ModelSpec,
};

/// Marks a file of this form and gives the version of its layouts.
pub(crate) const VERSION_KEY: &str = "bitnet.panels.version";
/// Version of the layouts of [`Panels`] and [`HeadCopy`].
pub(crate) const VERSION: u32 = 1;
/// Name of the copy of the output head, whose shape says its form.
pub(crate) const HEAD_COPY: &str = "output.int8";

/// The panels and the int8 head of a file of this form.
#[derive(Debug)]
pub(crate) struct PanelFile {
    file: String,
    matrices: Vec<Matrix>,
    /// For each projection, the index of its matrix and its rows in it.
    projections: HashMap<String, (usize, Range<usize>)>,
    weights: HotBytes,
    /// Form, shape and bytes of the copy of the head, if the head's shape allows one.
    head_copy: Option<(CopyForm, [usize; 2], HotBytes)>,
}

/// Projections stacked into one matrix, or a ternary table.
#[derive(Debug)]
struct Matrix {
    stored_name: String,
    rows: usize,
    cols: usize,
    /// Number of columns that share a scale, if groups have scales.
    group: Option<usize>,
    /// Its range in the bytes of all matrices.
    bytes: Range<usize>,
}

/// A stacked matrix and the rows of each projection in it.
type InStack<'a> = (&'a Matrix, Vec<&'a Range<usize>>);

/// A part of a file that is read in every step.
#[derive(Debug)]
struct HotBytes {
    file: SharedBytes,
    /// The same bytes, on huge pages where possible; filled on first use.
    resident: OnceLock<SharedBytes>,
}

impl HotBytes {
    fn new(gguf: &Gguf, range: Range<usize>) -> Self {
        let file = gguf.bytes.slice(range).expect("tensors lie in the file");
        HotBytes { file, resident: OnceLock::new() }
    }

    fn resident(&self) -> &SharedBytes {
        self.resident.get_or_init(|| on_huge_pages(&self.file))
    }
}

impl PanelFile {
    /// Takes the panels and the int8 head out of the tensors of a file, or returns `None` if the file has another form.
    pub(crate) fn take(
        gguf: &Gguf,
        spec: &ModelSpec,
        stored: &mut HashMap<&str, &Descriptor>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(version) = gguf.opt_u64(VERSION_KEY)? else { return Ok(None) };
        if version != u64::from(VERSION) {
            let cure = format!("this program reads version {VERSION}; convert the original model again");
            return Err(ModelError::unsupported(&gguf.file, VERSION_KEY, version, cure));
        }
        // Returns which of the allowed shapes a tensor has, and the range of its bytes.
        let mut take = |name: &str, shapes: &[[usize; 2]]| {
            let missing = || ModelError::MissingTensor { file: gguf.file.clone(), tensor: name.into() };
            let tensor = stored.remove(name).ok_or_else(missing)?;
            if tensor.kind != Some(GgmlType::I8) {
                let problem = format!("type {} is not i8", tensor.type_id);
                return Err(ModelError::tensor(&gguf.file, name, problem, "convert the model again"));
            }
            let which = shapes.iter().position(|shape| *shape == tensor.shape[..]);
            check_shape(&gguf.file, name, &shapes[which.unwrap_or(0)], &tensor.shape)?;
            Ok((which.unwrap_or(0), tensor.start..tensor.start + tensor.bytes.len()))
        };
        let (mut matrices, mut projections) = (Vec::new(), HashMap::new());
        for PanelMatrix { name: stored_name, parts, rows, cols } in names::panel_matrices(spec) {
            let mut end = 0;
            for (projection, rows) in parts {
                projections.insert(projection, (matrices.len(), end..end + rows));
                end += rows;
            }
            let groups = if spec.grouped.projections { &GROUPS.map(Some)[..] } else { &[None] };
            let shapes = groups.iter().map(|&group| Panels::stored_shape(rows, cols, group));
            let (which, bytes) = take(&stored_name, &shapes.collect::<Vec<_>>())?;
            let group = groups[which];
            matrices.push(Matrix { stored_name, rows, cols, group, bytes });
        }
        let head = [spec.vocab, spec.hidden];
        let forms = [CopyForm::Int8, CopyForm::Nibbles, CopyForm::NibblePairs, CopyForm::Sixes];
        let forms = forms.map(|form| copy_shape(spec, form).map(|shape| (form, shape)));
        let (forms, shapes): (Vec<_>, Vec<_>) = forms.into_iter().flatten().unzip();
        let head_copy = (!shapes.is_empty()).then(|| take(HEAD_COPY, &shapes)).transpose()?;
        let head_copy = head_copy.map(|(which, bytes)| (forms[which], head, HotBytes::new(gguf, bytes)));
        let start = matrices.iter().map(|m| m.bytes.start).min().unwrap_or(0);
        let end = matrices.iter().map(|m| m.bytes.end).max().unwrap_or(0);
        for matrix in &mut matrices {
            matrix.bytes = matrix.bytes.start - start..matrix.bytes.end - start;
        }
        let weights = HotBytes::new(gguf, start..end);
        Ok(Some(PanelFile { file: gguf.file.clone(), matrices, projections, weights, head_copy }))
    }

    /// The stored name of the matrix that holds this projection.
    pub(crate) fn stored_name(&self, projection: &str) -> Option<&str> {
        let (matrix, _) = self.projections.get(projection)?;
        Some(&self.matrices[*matrix].stored_name)
    }

    /// Number of columns that share a scale in the matrix that holds this projection, if groups have scales.
    pub(crate) fn group(&self, projection: &str) -> Option<usize> {
        let (matrix, _) = self.projections.get(projection)?;
        self.matrices[*matrix].group
    }

    /// One matrix in the canonical layout.
    pub(crate) fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        let (matrix, rows) = self.find(name)?;
        let panels = self.read(matrix, &self.weights.file)?;
        self.check_scale(matrix, &panels, rows)?;
        panels.unpack(rows.clone()).map_err(ModelError::data(&self.file, &matrix.stored_name))
    }

    fn find(&self, name: &str) -> Result<(&Matrix, &Range<usize>), ModelError> {
        let missing = || ModelError::MissingTensor { file: self.file.clone(), tensor: name.into() };
        let (matrix, rows) = self.projections.get(name).ok_or_else(missing)?;
        Ok((&self.matrices[*matrix], rows))
    }

    fn read(&self, matrix: &Matrix, weights: &SharedBytes) -> Result<Panels, ModelError> {
        let bytes = weights.slice(matrix.bytes.clone()).expect("matrices are inside the weights");
        let panels = Panels::from_stored(matrix.rows, matrix.cols, matrix.group, &bytes);
        panels.map_err(|e| self.refused(&matrix.stored_name, e))
    }

    /// The matrix that stacks exactly these projections, with the rows of each.
    fn stack(&self, names: &[String]) -> Result<Option<InStack<'_>>, ModelError> {
        let parts = names.iter().map(|name| self.find(name)).collect::<Result<Vec<_>, _>>()?;
        let Some(&(matrix, _)) = parts.first() else { return Ok(None) };
        let follow = |end, &(other, rows): &(&Matrix, &Range<usize>)| {
            (other.stored_name == matrix.stored_name && rows.start == end).then_some(rows.end)
        };
        let whole = parts.iter().try_fold(0, follow) == Some(matrix.rows);
        Ok(whole.then(|| (matrix, parts.into_iter().map(|(_, rows)| rows).collect())))
    }

    /// Checks that the rows of a projection have one scale, if rows have scales, as in every other form.
    fn check_scale(&self, matrix: &Matrix, panels: &Panels, rows: &Range<usize>) -> Result<(), ModelError> {
        let mut scales = panels.scales().iter().take(rows.end).skip(rows.start).map(|scale| scale.to_bits());
        let first = scales.next();
        if scales.any(|scale| Some(scale) != first) {
            let problem = "the rows of one projection have different scales";
            let cure = "convert the original model again";
            return Err(ModelError::tensor(&self.file, &matrix.stored_name, problem, cure));
        }
        Ok(())
    }

    fn refused(&self, tensor: &str, error: KernelError) -> ModelError {
        match error {
            KernelError::Weights(error) => ModelError::data(&self.file, tensor)(error),
            KernelError::Bound { value } => {
                let problem = format!("it holds an invalid scale, length or error bound ({value})");
                ModelError::tensor(&self.file, tensor, problem, "convert the model again")
            }
            KernelError::NotMerged => {
                let problem =
                    "its groups of 64 have scales that are equal in pairs and should be groups of 128";
                ModelError::tensor(&self.file, tensor, problem, "convert the original model again")
            }
            error => error.into(),
        }
    }
}

/// Lines and bytes per line, in a file, of the copy of a head of this type; `None` for a ternary head.
pub(crate) fn head_copy_shape(spec: &ModelSpec, head: DType) -> Option<[usize; 2]> {
    copy_shape(spec, CopyForm::of(head))
}

fn copy_shape(spec: &ModelSpec, form: CopyForm) -> Option<[usize; 2]> {
    HeadCopy::stored_shape(form, spec.vocab, spec.hidden).filter(|_| !spec.grouped.head)
}

impl PackedSource for PanelFile {
    fn panels(&self, names: &[String]) -> Result<Option<Panels>, ModelError> {
        let Some((matrix, parts)) = self.stack(names)? else { return Ok(None) };
        let panels = self.read(matrix, self.weights.resident())?;
        parts.into_iter().try_for_each(|rows| self.check_scale(matrix, &panels, rows))?;
        Ok(Some(panels))
    }

    fn head_copy(&self) -> Result<Option<HeadCopy>, ModelError> {
        let Some((form, [rows, cols], bytes)) = &self.head_copy else { return Ok(None) };
        let copy = HeadCopy::from_stored(*form, *rows, *cols, bytes.resident());
        copy.map(Some).map_err(|e| self.refused(HEAD_COPY, e))
    }
}
