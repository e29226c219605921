//! The format of a file in the folder of a cache: a header that says exactly what the part is, and its bytes.
//! `docs/dev/cache-folder.md` has the same in words. Nothing in a file is believed before its checksum is right.

use bitnet_model::Batch;
use twox_hash::XxHash3_128;

use crate::schedule::{Address, Part, PartKind};

/// The bytes of a header.
pub const HEADER: usize = 512;
const MAGIC: &[u8; 8] = b"bitnetKV";
/// Version of the format.
pub const VERSION: u32 = 2;
/// Bytes before the checksum of the header.
const CHECKED: usize = 416;
const BLOCK: usize = Batch::BLOCK_TOKENS;

/// A file's header: whose part it is, which one, and the length and checksum of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The identity of the model, cache type and device.
    pub identity: [u8; 32],
    /// What the part holds.
    pub part: Part,
    /// Number of bytes after the header.
    pub length: u64,
    /// Length of the pieces that have a hash each; the last may be shorter.
    pub piece: u64,
    /// The 128-bit checksum of these bytes.
    pub checksum: u128,
}

/// Why a file is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file is shorter or longer than its header says.
    #[error("the file has the wrong length (length): remove it")]
    Length,
    /// The file has another format.
    #[error("the file is no part of a cache of this version (magic, version): remove it")]
    Foreign,
    /// The header or the bytes have changed since they were written.
    #[error("the file has changed since it was written (checksum): remove it")]
    Checksum,
    /// The file holds another part than its name says.
    #[error("the file holds something else than its name says (address): remove it")]
    Other,
}

impl Entry {
    /// The header for these bytes, in pieces of this length.
    pub fn of(identity: [u8; 32], part: Part, bytes: &[u8], piece: usize) -> Entry {
        let hashes = bytes.chunks(piece).map(XxHash3_128::oneshot);
        Entry { identity, part, length: bytes.len() as u64, piece: piece as u64, checksum: checksum(hashes) }
    }

    /// Writes the header.
    pub fn header(&self) -> [u8; HEADER] {
        let Part { kind, address, before, salt, index, tokens } = &self.part;
        let mut header = [0; HEADER];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            header[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(if *kind == PartKind::Block { 1u32 } else { 2 }).to_le_bytes());
        [&self.identity, &address.0, &before.0].into_iter().for_each(|hash| put(hash));
        put(&salt.to_le_bytes());
        put(&index.to_le_bytes());
        put(&(BLOCK as u32).to_le_bytes());
        tokens.iter().for_each(|token| put(&token.to_le_bytes()));
        put(&self.length.to_le_bytes());
        put(&self.piece.to_le_bytes());
        put(&self.checksum.to_le_bytes());
        let check = XxHash3_128::oneshot(&header[..CHECKED]);
        header[CHECKED..][..16].copy_from_slice(&check.to_le_bytes());
        header
    }

    /// Reads a header.
    ///
    /// # Errors
    /// If it is not exactly as [`Entry::header`] writes it.
    pub fn parse(header: &[u8]) -> Result<Entry, Damage> {
        let header: &[u8; HEADER] = header.try_into().map_err(|_| Damage::Length)?;
        if !header.starts_with(MAGIC) || header[8..12] != VERSION.to_le_bytes() {
            return Err(Damage::Foreign);
        }
        let mut rest = &header[12..];
        let kind = match u32::from_le_bytes(take(&mut rest)) {
            1 => PartKind::Block,
            2 => PartKind::State,
            _ => return Err(Damage::Checksum),
        };
        let [identity, address, before] = [(); 3].map(|()| take::<32>(&mut rest));
        let salt = u64::from_le_bytes(take(&mut rest));
        let index = u32::from_le_bytes(take(&mut rest));
        take::<4>(&mut rest);
        let tokens = [(); BLOCK].map(|()| u32::from_le_bytes(take(&mut rest)));
        let length = u64::from_le_bytes(take(&mut rest));
        let piece = u64::from_le_bytes(take(&mut rest));
        let checksum = u128::from_le_bytes(take(&mut rest));
        let part = Part { kind, address: Address(address), before: Address(before), salt, index, tokens };
        let entry = Entry { identity, part, length, piece, checksum };
        if entry.header() == *header { Ok(entry) } else { Err(Damage::Checksum) }
    }

    /// Checks the number of bytes after the header, and their checksum.
    ///
    /// # Errors
    /// If they are not those for which the header was written.
    pub fn check(&self, length: usize, checksum: u128) -> Result<(), Damage> {
        if length as u64 != self.length {
            return Err(Damage::Length);
        }
        if checksum == self.checksum { Ok(()) } else { Err(Damage::Checksum) }
    }

    /// Checks a whole file and returns its header.
    ///
    /// # Errors
    /// If it is not a whole, undamaged part.
    pub fn read(file: &[u8]) -> Result<Entry, Damage> {
        let (header, bytes) = file.split_at_checked(HEADER).ok_or(Damage::Length)?;
        let entry = Entry::parse(header)?;
        let piece = usize::try_from(entry.piece).ok().filter(|&piece| piece > 0).ok_or(Damage::Other)?;
        entry.check(bytes.len(), checksum(bytes.chunks(piece).map(XxHash3_128::oneshot)))?;
        Ok(entry)
    }
}

/// The checksum of bytes whose pieces have these hashes: a hash of hashes, so that threads can check pieces in any order.
pub fn checksum(hashes: impl IntoIterator<Item = u128>) -> u128 {
    let mut all = XxHash3_128::new();
    hashes.into_iter().for_each(|hash| all.write(&hash.to_le_bytes()));
    all.finish_128()
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (first, rest) = bytes.split_first_chunk().expect("the header has room for all fields");
    *bytes = rest;
    *first
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::parts;

    /// The value that the authors of XXH3 publish for no bytes at all; and a hash of bytes that come in parts is that of all.
    #[test]
    fn a_checksum_is_that_of_other_programs() {
        assert_eq!(checksum([]), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        assert_eq!(checksum([5]), XxHash3_128::oneshot(&5_u128.to_le_bytes()));
    }

    fn file(kind: PartKind) -> Vec<u8> {
        let text: Vec<u32> = (7..7 + 2 * BLOCK as u32).collect();
        let part = parts(&[3; 32], 9, &text, kind).nth(1).unwrap();
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let entry = Entry::of([3; 32], part, &bytes, 256);
        let file = [&entry.header()[..], &bytes].concat();
        assert_eq!(Entry::read(&file), Ok(entry));
        file
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        for kind in [PartKind::Block, PartKind::State] {
            let file = file(kind);
            for bit in 0..8 * file.len() {
                let mut damaged = file.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(Entry::read(&damaged).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_file_of_another_length_is_no_part() {
        let file = file(PartKind::Block);
        for length in 0..file.len() {
            assert!(Entry::read(&file[..length]).is_err(), "{length} bytes");
        }
        assert_eq!(Entry::read(&[&file[..], &[0]].concat()), Err(Damage::Length));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
            prop_assert!(Entry::read(&bytes).is_err());
        }
    }
}
