//! Edits a GGUF file, to produce files that are not among the fixtures.

/// Keys with their type and raw value, and tensors with their data.
pub struct GgufEdit {
    pub entries: Vec<(String, u32, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
}

/// A tensor: dimensions in the file's order, innermost first.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
}

struct Reader<'a>(&'a [u8], usize);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        self.1 += n;
        &self.0[self.1 - n..self.1]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(*self.take(4).first_chunk().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(*self.take(8).first_chunk().unwrap())
    }

    fn string(&mut self) -> String {
        let n = self.u64() as usize;
        String::from_utf8(self.take(n).to_vec()).unwrap()
    }

    fn skip(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => drop(self.take(1)),
            2 | 3 => drop(self.take(2)),
            4..=6 => drop(self.take(4)),
            8 => drop(self.string()),
            9 => {
                let (kind, n) = (self.u32(), self.u64());
                (0..n).for_each(|_| self.skip(kind));
            }
            10..=12 => drop(self.take(8)),
            other => panic!("value type {other}"),
        }
    }
}

impl GgufEdit {
    pub fn read(bytes: &[u8]) -> Self {
        let mut r = Reader(bytes, 8);
        let (tensors, entries) = (r.u64(), r.u64());
        let entries = (0..entries).map(|_| {
            let (key, kind) = (r.string(), r.u32());
            let start = r.1;
            r.skip(kind);
            (key, kind, bytes[start..r.1].to_vec())
        });
        let entries: Vec<_> = entries.collect();
        let described: Vec<_> = (0..tensors)
            .map(|_| {
                let name = r.string();
                let n = r.u32();
                let dims = (0..n).map(|_| r.u64()).collect();
                (name, dims, r.u32(), r.u64() as usize)
            })
            .collect();
        let start = r.1.next_multiple_of(alignment(&entries));
        let end = |offset: usize| {
            described.iter().map(|t| t.3).filter(|&o| o > offset).min().unwrap_or(bytes.len() - start)
        };
        let tensors = described
            .iter()
            .map(|(name, dims, kind, offset): &(String, Vec<u64>, u32, usize)| Tensor {
                name: name.clone(),
                dims: dims.clone(),
                kind: *kind,
                data: bytes[start + offset..start + end(*offset)].to_vec(),
            })
            .collect();
        GgufEdit { entries, tensors }
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.entries {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            out.extend(text(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + t.data.len() as u64).next_multiple_of(alignment(&self.entries) as u64);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(alignment(&self.entries)), 0);
            out.extend(&t.data);
        }
        out
    }

    pub fn remove(&mut self, key: &str) {
        let before = self.entries.len();
        self.entries.retain(|e| e.0 != key);
        assert_eq!(self.entries.len() + 1, before, "{key}");
    }

    /// Sets a key to a value of type `kind`.
    pub fn set(&mut self, key: &str, kind: u32, value: Vec<u8>) {
        self.entries.retain(|e| e.0 != key);
        self.entries.push((key.into(), kind, value));
    }

    pub fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, 8, text(value));
    }

    /// The values of an array of strings.
    pub fn texts(&self, key: &str) -> Vec<String> {
        let (_, _, raw) = self.entries.iter().find(|e| e.0 == key).unwrap_or_else(|| panic!("{key}"));
        let mut r = Reader(raw, 4);
        (0..r.u64()).map(|_| r.string()).collect()
    }

    pub fn set_texts(&mut self, key: &str, values: &[String]) {
        let mut raw = 8u32.to_le_bytes().to_vec();
        raw.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| raw.extend(text(v)));
        self.set(key, 9, raw);
    }

    /// Sets a key to an array of 4-byte values of type `kind`.
    pub fn set_words(&mut self, key: &str, kind: u32, values: impl ExactSizeIterator<Item = [u8; 4]>) {
        let mut raw = kind.to_le_bytes().to_vec();
        raw.extend((values.len() as u64).to_le_bytes());
        values.for_each(|v| raw.extend(v));
        self.set(key, 9, raw);
    }

    /// Renames the architecture and every key that begins with it.
    pub fn set_architecture(&mut self, name: &str) {
        for (key, _, _) in &mut self.entries {
            for old in ["bitnet-b1.58.", "llama."] {
                if let Some(rest) = key.strip_prefix(old) {
                    *key = format!("{name}.{rest}");
                    break;
                }
            }
        }
        self.set_text("general.architecture", name);
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}"))
    }
}

/// The alignment of data: 32, unless the file sets another.
fn alignment(entries: &[(String, u32, Vec<u8>)]) -> usize {
    let said = entries.iter().find(|entry| entry.0 == "general.alignment");
    said.map_or(32, |entry| u32::from_le_bytes(*entry.2.first_chunk().unwrap()) as usize)
}

/// A string, preceded by its length.
pub fn text(text: &str) -> Vec<u8> {
    let mut raw = (text.len() as u64).to_le_bytes().to_vec();
    raw.extend(text.as_bytes());
    raw
}
