//! Packed little-endian columns: token ids and offsets cross a process as plain bytes.

use bytes::{BufMut, Bytes, BytesMut};

/// Packs values as 4 bytes each, little-endian.
#[must_use]
pub fn from_u32s(values: &[u32]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(4 * values.len());
    for &value in values {
        bytes.put_u32_le(value);
    }
    bytes.freeze()
}

/// Reads what [`from_u32s`] packed; `None` where the length is no multiple of 4 bytes.
#[must_use]
pub fn to_u32s(bytes: &[u8]) -> Option<Vec<u32>> {
    let (words, rest) = bytes.as_chunks::<4>();
    rest.is_empty()
        .then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_read_back() {
        let values = [0, 1, 30_521, u32::MAX];
        assert_eq!(to_u32s(&from_u32s(&values)).unwrap(), values);
    }

    #[test]
    fn a_torn_word_is_refused() {
        assert_eq!(to_u32s(&[1, 2, 3]), None);
    }
}
