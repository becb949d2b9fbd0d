//! Manifests of a model's layers: from the digest cache, else hashed once, on demand.
use std::sync::Arc;

use cake_checkpoint::{DigestCache, Error, Manifest};
use tokio::sync::OnceCell;

use crate::model::Model;

/// Manifests of all layers, each made at most once. Share it by `Arc`.
#[derive(Debug)]
pub struct Manifests {
    model: Model,
    cache: Arc<DigestCache>,
    identity: String,
    layers: Vec<OnceCell<Arc<Manifest>>>,
}

impl Manifests {
    /// Looks every layer up in the cache; reads no weights.
    ///
    /// # Errors
    /// If the checkpoint's files cannot be examined.
    pub fn open(model: Model, cache: DigestCache) -> Result<Self, Error> {
        let identity = model.identity()?;
        let known = |layer| cache.get(&identity, layer).map(Arc::new);
        let layers = (0..model.checkpoint.config.layers.len())
            .map(|layer| OnceCell::new_with(known(layer)))
            .collect();
        Ok(Self { model, cache: Arc::new(cache), identity, layers })
    }

    /// The model they describe.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The manifest of a layer, if it was hashed before.
    pub fn known(&self, layer: usize) -> Option<&Arc<Manifest>> {
        self.layers.get(layer)?.get()
    }

    /// What is known of every layer, for the planner.
    pub fn all_known(&self) -> Vec<Option<Arc<Manifest>>> {
        (0..self.layers.len()).map(|layer| self.known(layer).cloned()).collect()
    }

    /// Bytes of a layer's blob: from the headers, and what [`cake_checkpoint::Checkpoint::becomes`] finds.
    pub fn blob_bytes(&self, layer: usize) -> u64 {
        self.model.blob_bytes(layer)
    }

    /// The manifest of a layer; hashes the layer now if it is not known.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    ///
    /// # Panics
    /// If `layer` is not one of the checkpoint's: callers take layers from a plan of it.
    pub async fn get(&self, layer: usize) -> Result<Arc<Manifest>, Error> {
        let made = self.layers[layer].get_or_try_init(|| async {
            let (model, cache) = (self.model.clone(), self.cache.clone());
            let identity = self.identity.clone();
            let hashing = tokio::task::spawn_blocking(move || {
                let manifest = model.blob(layer).manifest()?;
                if let Err(error) = cache.put(&identity, layer, &manifest) {
                    tracing::warn!(%error, "cannot remember digests; they are computed again");
                }
                Ok(Arc::new(manifest))
            });
            match hashing.await {
                Ok(result) => result,
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            }
        });
        made.await.cloned()
    }
}
