//! Reads weights from a source into the layout of a backend: tables, stacks of ternary matrices, norms.
//! Files that already have the backend's layout are used in place.

use bitnet_kernels::{Backend, Int8Matrix, KernelError, Norm, Rotate, RowOrder, Weights};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TensorError, TernaryTensor};

use crate::{
    ModelError,
    files::{PackedSource, TensorSource},
    names,
    spec::ModelSpec,
};

/// The file's name in errors about a source that has no name.
pub(crate) const SOURCE: &str = "model";

/// The embedding or the output head.
pub(crate) fn read_table<B: Backend>(
    b: &mut B,
    spec: &ModelSpec,
    tensors: &dyn TensorSource,
    name: &str,
) -> Result<B::Table, ModelError> {
    let embedding = name == names::EMBEDDING;
    let grouped = if embedding { spec.grouped.embedding } else { spec.grouped.head };
    if !grouped {
        return Ok(b.table(&tensors.dense(name)?)?);
    }
    let mut table = b.table(read_ternary::<B>(tensors, &[name.into()], grouped)?)?;
    let rotated = |r: &crate::spec::Rotation| if embedding { r.embedding } else { r.weights.contains(name) };
    if let Some(rotation) = spec.rotation.as_ref().filter(|rotation| rotated(rotation)) {
        let signs = rotation.signs.get(&spec.hidden).map(|signs| &signs[..]);
        let rotate = Rotate { block: rotation.block, signs, grouped: None };
        let rotation = b.rotation(spec.hidden, &rotate)?;
        b.rotate_table(&mut table, rotation);
    }
    Ok(table)
}

/// Reads projections that share an input, stacked into one matrix.
pub(crate) fn read_linear<B: Backend>(
    b: &mut B,
    spec: &ModelSpec,
    tensors: &dyn TensorSource,
    names: &[String],
    order: RowOrder,
) -> Result<B::Linear, ModelError> {
    Ok(b.linear(read_ternary::<B>(tensors, names, spec.grouped.projections)?, order)?)
}

/// Reads ternary matrices that share an input, stacked into one: as they are stored, if that is `B`'s own layout.
pub(crate) fn read_ternary<B: Backend>(
    tensors: &dyn TensorSource,
    names: &[String],
    grouped: bool,
) -> Result<Weights<'static>, ModelError> {
    let stored = packed::<B>(tensors).map(|packed| packed.panels(names)).transpose()?;
    let weights = match stored.flatten() {
        Some(panels) => Weights::from(panels),
        None => read_stacked(tensors, names)?.into(),
    };
    if weights.group().is_some() != grouped {
        let problem =
            "what shares a scale, rows or groups of weights, is not what the model's configuration says";
        let cure = "make `TensorSource::ternary` return what `ModelSpec::grouped` says";
        return Err(ModelError::tensor(SOURCE, &names.join(" + "), problem, cure));
    }
    Ok(weights)
}

/// Reads a router: in bf16 if that holds every value, half the bytes of floats that were bf16 before they were converted.
pub(crate) fn read_router(tensors: &dyn TensorSource, name: &str) -> Result<BitNetTensor, ModelError> {
    let table = tensors.dense(name)?;
    let (words, _) = table.bytes().as_chunks::<4>();
    if table.dtype() != DType::F32 || words.iter().any(|word| word[..2] != [0; 2]) {
        return Ok(table);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| [word[2], word[3]]).collect();
    let shape = [table.rows(), table.cols()];
    Ok(BitNetTensor::new(DType::BF16, shape, SharedBytes::new(bytes)).unwrap_or(table))
}

/// Reads columns `cols` of projections of a draft head that share an input, stacked into one matrix of int8.
pub(crate) fn read_int8(
    tensors: &dyn TensorSource,
    names: &[String],
    cols: std::ops::Range<usize>,
) -> Result<Int8Matrix, ModelError> {
    let parts = names.iter().map(|n| tensors.dense(n)).collect::<Result<Vec<_>, _>>()?;
    let whole = |end: usize| end.is_multiple_of(Int8Matrix::BLOCK);
    if !(whole(cols.start) && whole(cols.end)) {
        let problem = format!("columns {cols:?} are not whole blocks of {}", Int8Matrix::BLOCK);
        let cure = "draft without the model's head";
        return Err(ModelError::tensor(SOURCE, &names.join(" + "), problem, cure));
    }
    let mut matrix = Int8Matrix::with_capacity(parts.iter().map(BitNetTensor::rows).sum(), cols.len())?;
    parts.iter().for_each(|part| matrix.append(part, cols.clone()));
    Ok(matrix)
}

/// Reads the gain of a norm.
pub(crate) fn read_norm<B: Backend>(
    b: &mut B,
    tensors: &dyn TensorSource,
    name: &str,
    eps: f32,
) -> Result<Norm<B::Gain>, ModelError> {
    Ok(Norm { gain: b.gain(&tensors.dense(name)?.to_f32())?, eps })
}

/// The weights in `B`'s own layout, if they are stored in it.
pub(crate) fn packed<B: Backend>(tensors: &dyn TensorSource) -> Option<&dyn PackedSource> {
    tensors.packed().filter(|_| B::READS_PANELS)
}

/// Reads ternary matrices that share an input, stacked into one.
pub(crate) fn read_stacked(
    tensors: &dyn TensorSource,
    names: &[String],
) -> Result<TernaryTensor, ModelError> {
    let mut parts = names.iter().map(|n| tensors.ternary(n)).collect::<Result<Vec<_>, _>>()?;
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    TernaryTensor::stack(&parts).map_err(|e| match e {
        TensorError::OutOfMemory { bytes } => no_memory(bytes),
        other => ModelError::data(SOURCE, &names.join(" + "))(other),
    })
}

fn no_memory(bytes: usize) -> ModelError {
    KernelError::OutOfMemory { what: "stacked weights", bytes }.into()
}

/// Reads float matrices that share an input, stacked into one.
pub(crate) fn read_dense_stack(
    tensors: &dyn TensorSource,
    names: &[String],
) -> Result<BitNetTensor, ModelError> {
    let parts = names.iter().map(|n| tensors.dense(n)).collect::<Result<Vec<_>, _>>()?;
    let shape = [parts.iter().map(BitNetTensor::rows).sum::<usize>(), parts[0].cols()];
    let alike = parts.iter().all(|part| part.dtype() == parts[0].dtype());
    let stacked = if alike {
        let len = parts.iter().map(|part| part.bytes().len()).sum();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| no_memory(len))?;
        parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
        BitNetTensor::new(parts[0].dtype(), shape, SharedBytes::new(bytes))
    } else {
        let values: Vec<f32> = parts.iter().flat_map(BitNetTensor::to_f32).collect();
        BitNetTensor::from_f32(shape, &values)
    };
    stacked.map_err(ModelError::data(SOURCE, &names.join(" + ")))
}
