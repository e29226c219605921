//! Embeddings of texts: vectors of length 1, from models that embed.

use bitnet_inference::{self as inference, Completion, RequestHandle, SubmitError};

use crate::{Error, Model, Request};

/// The embedding of a text: a vector of length 1. Similar texts have embeddings with a large dot product.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Embedding {
    /// The vector, of the width of the model's hidden state unless truncated.
    pub values: Vec<f32>,
    /// Number of tokens in the text.
    pub prompt_tokens: usize,
}

impl Embedding {
    /// The embedding whose direction is a hidden state, such as the result of [`inference::Request::pooled`].
    pub fn new(hidden: Vec<f32>, prompt_tokens: usize) -> Embedding {
        let mut embedding = Embedding { values: hidden, prompt_tokens };
        embedding.normalise();
        embedding
    }

    /// Keeps the first `dimensions` values, if there are more, and normalises them again.
    pub fn truncated(mut self, dimensions: usize) -> Embedding {
        if dimensions < self.values.len() {
            self.values.truncate(dimensions);
            self.normalise();
        }
        self
    }

    /// Divides the values by the square root of the sum of their squares, which are added in f64 from the first to the
    /// last. Zeros stay zeros.
    fn normalise(&mut self) {
        let sum = self.values.iter().fold(0.0, |sum, &value| sum + f64::from(value) * f64::from(value));
        if sum > 0.0 {
            let length = sum.sqrt();
            self.values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        }
    }
}

impl Model {
    /// Embeds a text: the hidden state of its last token, or the mean of those of all tokens, as the model's files say,
    /// normalised to length 1. The options of the request for how to
    /// continue the text do not matter.
    ///
    /// ```
    /// use bitnet::{Model, Request};
    ///
    /// let model = Model::open("synthetic:embedding-tiny")?;
    /// let [a, b] = [[1, 2, 3], [1, 2, 4]].map(|ids| model.embed(Request::tokens(ids)));
    /// let (a, b) = (a?.values, b?.values);
    /// let similarity: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
    /// assert!(similarity < 0.9999);
    /// # Ok::<(), bitnet::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoEmbeddings`] if the model does not embed texts, or another if the request is invalid or fails.
    pub fn embed(&self, text: impl Into<Request>) -> Result<Embedding, Error> {
        self.embed_batch([text]).remove(0)
    }

    /// Embeds many texts in the same steps. Each gets the same embedding as it would alone, or its own error.
    pub fn embed_batch<R: Into<Request>>(
        &self,
        texts: impl IntoIterator<Item = R>,
    ) -> Vec<Result<Embedding, Error>> {
        let requests = texts.into_iter().map(|text| self.embedding_request(&text.into()));
        let submit = |request: Result<inference::Request, Error>| {
            let request = request?;
            let tokens = request.prompt.len();
            Ok((self.engine().submit_all(vec![request])?.remove(0), tokens))
        };
        let handles: Vec<Result<_, Error>> = requests.map(submit).collect();
        let wait = |(handle, tokens): (RequestHandle, usize)| Ok(embedding(handle.wait()?, tokens));
        handles.into_iter().map(|handle| handle.and_then(wait)).collect()
    }

    /// As [`Model::embed`], on any executor.
    pub async fn embed_async(&self, text: impl Into<Request>) -> Result<Embedding, Error> {
        self.embed_batch_async([text.into()]).await.remove(0)
    }

    /// As [`Model::embed_batch`], on any executor.
    pub async fn embed_batch_async<R: Into<Request>>(
        &self,
        texts: impl IntoIterator<Item = R>,
    ) -> Vec<Result<Embedding, Error>> {
        let texts = texts.into_iter().map(|text| self.embedding_request(&text.into()));
        let requests: Vec<_> = texts.collect();
        let mut submitted = Vec::with_capacity(requests.len());
        for request in requests {
            submitted.push(self.submit_embedding(request).await);
        }
        let mut embeddings = Vec::with_capacity(submitted.len());
        for text in submitted {
            embeddings.push(match text {
                Ok((handle, tokens)) => {
                    handle.wait_async().await.map(|done| embedding(done, tokens)).map_err(Error::from)
                }
                Err(error) => Err(error),
            });
        }
        embeddings
    }

    async fn submit_embedding(
        &self,
        request: Result<inference::Request, Error>,
    ) -> Result<(RequestHandle, usize), Error> {
        let request = request?;
        let tokens = request.prompt.len();
        Ok((self.engine().submit_all_async(vec![request]).await?.remove(0), tokens))
    }

    /// Whether the model embeds texts.
    pub fn embeds(&self) -> bool {
        self.checkpoint().spec.embeds.is_some()
    }

    fn embedding_request(&self, text: &Request) -> Result<inference::Request, Error> {
        let Some(pooling) = self.checkpoint().spec.embeds else {
            return Err(Error::NoEmbeddings { model: self.checkpoint().name.clone() });
        };
        let request = inference::Request {
            priority: text.priority,
            salt: text.salt,
            timeout: text.timeout,
            ..inference::Request::pooled(self.encode(text)?, pooling)
        };
        self.engine().validate(&request).map_err(SubmitError::from)?;
        Ok(request)
    }
}

/// The embedding of a text with this many tokens.
fn embedding(completion: Completion, tokens: usize) -> Embedding {
    Embedding::new(completion.logits.unwrap_or_default(), tokens)
}
