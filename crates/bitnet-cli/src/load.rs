//! Calls [`bitnet::load`] with the flags, and shows a progress bar and notes.

use bitnet::{
    CacheDir, Error, OpenDraft, Opened,
    inference::{CacheFolder, EngineConfig},
    kernels::{
        Cpu, Isa,
        gpu::{Cuda, Driver, Gpu, GpuError},
    },
    load,
    model::{Checkpoint, Model},
};

pub use bitnet::load::{Loaded, Want};

use crate::{
    args::{CacheFlags, Common, FolderFlags, Speculation},
    error::CliError,
    output,
    progress::Progress,
};

/// The machine that a command computes on: the CPU, and GPUs behind a driver.
pub struct Machine<'a, D> {
    pub common: &'a Common,
    /// Opens the GPU with this number.
    pub open: fn(usize) -> Result<D, GpuError>,
}

fn machine(common: &Common) -> Result<load::Machine, CliError> {
    let threads = match common.threads.as_deref() {
        None => None,
        Some(&[threads]) => Some(threads.into()),
        Some(_) => {
            let cure = "give one number; only bench without --url or --restart compares several";
            return Err(CliError::usage("several numbers of threads", "--threads", cure));
        }
    };
    Ok(load::Machine {
        device: common.device,
        threads,
        isa: Isa::named(&common.isa)?,
        kv: common.kv,
        memory: common.memory,
    })
}

/// Makes the CPU backend with the flags.
pub fn cpu(common: &Common) -> Result<Cpu, CliError> {
    Ok(machine(common)?.cpu()?)
}

/// [`Machine::load`] on this machine.
pub fn load(common: &Common, checkpoint: &Checkpoint, want: Want) -> Result<Loaded, CliError> {
    Machine::of(common).load(checkpoint, want)
}

/// [`Machine::load_drafting`] on this machine.
pub fn load_drafting(
    common: &Common,
    checkpoint: &Checkpoint,
    draft: &OpenDraft,
    want: Want,
) -> Result<Loaded, CliError> {
    Machine::of(common).load_drafting(checkpoint, draft, want)
}

impl<'a> Machine<'a, Cuda> {
    /// The real machine.
    pub fn of(common: &'a Common) -> Self {
        Machine { common, open: Cuda::open }
    }
}

impl<D: Driver + 'static> Machine<'_, D> {
    /// Opens a GPU and loads its kernels, for the type of cache that the flags name.
    pub fn gpu(&self, index: usize) -> Result<Gpu<D>, Error> {
        let kv = load::gpu_cache(self.common.kv)?;
        Ok((self.open)(index).and_then(Gpu::new)?.keeping(kv))
    }

    /// Opens the first GPU that can be used, with its number; otherwise says why none can.
    pub fn first_gpu(&self) -> Result<(usize, Gpu<D>), String> {
        let mut reasons = Vec::new();
        loop {
            let index = reasons.len();
            match self.gpu(index) {
                Ok(gpu) => return Ok((index, gpu)),
                Err(Error::Gpu(GpuError::NoDevice { .. })) if index > 0 => return Err(reasons.join("; ")),
                Err(why) => {
                    reasons.push(why.to_string());
                    if !load::another_may_serve(&why) {
                        return Err(reasons.join("; "));
                    }
                }
            }
        }
    }

    /// Loads a model with what the command needs, within the memory that the flags allow.
    pub fn load(&self, checkpoint: &Checkpoint, want: Want) -> Result<Loaded, CliError> {
        self.load_drafting(checkpoint, &OpenDraft::default(), want)
    }

    /// As [`Machine::load`], with what drafts for the model.
    pub fn load_drafting(
        &self,
        checkpoint: &Checkpoint,
        draft: &OpenDraft,
        want: Want,
    ) -> Result<Loaded, CliError> {
        let mut bar = None;
        let mut progress = |done, all| {
            bar.get_or_insert_with(|| Progress::new("loading", all)).at(done, all);
        };
        let loaded =
            load::load_by(&machine(self.common)?, self.open, checkpoint, draft, want, &mut progress)?;
        drop(bar);
        // Some warnings are known only after all weights have been read.
        for warning in checkpoint.tensors.warnings() {
            output::note(format_args!("warning: {warning}"));
        }
        loaded.notes().into_iter().for_each(output::note);
        Ok(loaded)
    }
}

/// The folder in which the cache is kept, if the flags name one.
pub fn folder(
    cache: &FolderFlags,
    opened: &Opened,
    model: &dyn Model,
) -> Result<Option<CacheFolder>, CliError> {
    let Some(path) = cache.cache_dir.clone() else { return Ok(None) };
    let mut bar = None;
    let mut progress = |done, all| {
        bar.get_or_insert_with(|| Progress::new("hashing", all)).at(done, all);
    };
    let dir = CacheDir { path, bytes: cache.cache_size };
    Ok(Some(dir.folder(opened, model, &mut progress)?))
}

/// Loads a model and starts its engine, with room for the maximum length of every sequence in the batch if memory
/// allows.
pub fn start(
    common: &Common,
    opened: Opened,
    speculation: &Speculation,
    config: EngineConfig,
    cache: &CacheFlags,
) -> Result<bitnet::Model, CliError> {
    let draft = speculation.open(&opened.checkpoint)?;
    let config = EngineConfig { max_draft: draft.most(speculation.speculate.into()), ..config };
    let want = Want::engine(config.max_batch_size, config.max_draft, opened.checkpoint.spec.context);
    let Loaded { model, drafter, plan, .. } = load_drafting(common, &opened.checkpoint, &draft, want)?;
    let folder = folder(&cache.folder, &opened, &*model)?;
    let config = EngineConfig { folder, host_cache: cache.cache_host.unwrap_or(0), ..config };
    let model = bitnet::Model::start_drafting(opened, model, drafter, config)?;
    output::note(plan);
    Ok(model)
}
