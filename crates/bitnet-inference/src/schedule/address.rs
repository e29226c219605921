//! Names for what parts of the cache hold, which are equal in every process: [`Address`] and [`Part`].

use std::fmt;

use bitnet_model::{Batch, CachePlace};
use sha2::{Digest, Sha256};

const BLOCK: usize = Batch::BLOCK_TOKENS;

/// The name of everything up to the end of a block: a SHA-256 of the identity of the model, the salt and the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub [u8; 32]);

impl Address {
    /// The address before the first token.
    pub fn root(identity: &[u8; 32], salt: u64) -> Address {
        let hash = Sha256::new().chain_update(b"bitnet cache root").chain_update(identity);
        Address(hash.chain_update(salt.to_le_bytes()).finalize().into())
    }

    /// The address after a block of these tokens.
    pub fn then(&self, tokens: &[u32]) -> Address {
        let mut hash = Sha256::new().chain_update(self.0);
        let mut bytes = [0; 4 * BLOCK];
        for (to, token) in bytes.as_chunks_mut().0.iter_mut().zip(tokens) {
            *to = token.to_le_bytes();
        }
        hash.update(&bytes[..4 * tokens.len().min(BLOCK)]);
        Address(hash.finalize().into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a part of the cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// The keys and values of a block.
    Block,
    /// The recurrent state after a block.
    State,
}

impl PartKind {
    /// The place of this kind with a number.
    pub fn place(self, number: u32) -> CachePlace {
        match self {
            PartKind::Block => CachePlace::Block(number),
            PartKind::State => CachePlace::State(number),
        }
    }
}

/// What a part of the cache holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Keys and values, or a state.
    pub kind: PartKind,
    /// The address after its last token.
    pub address: Address,
    /// The address before the block.
    pub before: Address,
    /// The salt of the requests that may use it.
    pub salt: u64,
    /// Index of the block in its text.
    pub index: u32,
    /// The tokens of the block.
    pub tokens: [u32; BLOCK],
}

impl Part {
    /// The state after a block.
    pub fn state(&self) -> Part {
        Part { kind: PartKind::State, ..self.clone() }
    }
}

/// The parts of kind `kind` at the beginning of a text, one for each full block.
pub fn parts<'t>(
    identity: &[u8; 32],
    salt: u64,
    text: &'t [u32],
    kind: PartKind,
) -> impl Iterator<Item = Part> + use<'t> {
    let mut before = Address::root(identity, salt);
    (0..).zip(text.as_chunks::<BLOCK>().0).map(move |(index, tokens)| {
        let address = before.then(tokens);
        let before = std::mem::replace(&mut before, address);
        Part { kind, address, before, salt, index, tokens: *tokens }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_tells_identities_salts_and_texts_apart() {
        let text: Vec<u32> = (0..3 * BLOCK as u32).collect();
        let of = |identity: u8, salt, text: &[u32]| -> Vec<Address> {
            parts(&[identity; 32], salt, text, PartKind::Block).map(|part| part.address).collect()
        };
        let all = of(1, 0, &text);
        assert_eq!(all.len(), 3);
        assert_eq!(all[..2], of(1, 0, &text[..3 * BLOCK - 1])[..]);
        assert!(of(2, 0, &text).iter().chain(&of(1, 1, &text)).all(|address| !all.contains(address)));
        let mut other = text.clone();
        other[0] += 1;
        assert!(of(1, 0, &other).iter().all(|address| !all.contains(address)));
        other = text.clone();
        other[2 * BLOCK] += 1;
        assert_eq!(of(1, 0, &other)[..2], all[..2]);
        assert_ne!(of(1, 0, &other)[2], all[2]);
    }
}
