//! One checked chunk. Tulip trusts no caller: everything is checked here before it is queued.

use bytes::Bytes;
use flowerbed_protocol::{Error, ErrorKind, limits, packed, v1};

use crate::config::{Head, ModelConfig};
use crate::scheduler::Lane;

/// The token ids of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// First token, counted in the chunk.
    pub start: usize,
    /// Tokens.
    pub len: u32,
    /// First token of the second text, counted in the sequence; its length if there is none.
    pub pair_start: u32,
    /// First row, counted in the chunk.
    pub first_row: usize,
    /// Rows (segments).
    pub num_rows: usize,
}

/// How one row is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFormat {
    /// Number format.
    pub dtype: v1::Dtype,
    /// Leading values kept.
    pub dimensions: u32,
    /// Whether the row is scaled to length 1 after the cut.
    pub normalize: bool,
    /// Bytes of one row.
    pub row_bytes: usize,
}

/// A `RunRequest` that may run.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// What is asked of each sequence.
    pub head: Head,
    /// Where it queues.
    pub lane: Lane,
    /// `[num_tokens]`, every id below the rows of the embedding matrix.
    pub ids: Vec<u32>,
    /// At least one; in order, end to end.
    pub sequences: Vec<Sequence>,
    /// `[num_rows]` start and end of each row's tokens, counted in its sequence; one token each
    /// where the head is [`Head::Tokens`].
    pub segments: Vec<(u32, u32)>,
    /// At least one.
    pub outputs: Vec<RowFormat>,
    /// Whether any sequence holds two texts.
    pub has_pairs: bool,
}

impl Chunk {
    /// Checks a request against the model.
    ///
    /// # Errors
    /// Names the field, and the index of the sequence where there is one.
    pub fn check(request: &v1::RunRequest, model: &ModelConfig) -> Result<Self, Error> {
        check_addressee(request, model)?;
        let head = Head::from_wire(request.head())
            .filter(|head| model.heads.contains(head))
            .ok_or_else(|| Error::invalid("head", format!("{} has no such head", model.id)))?;
        let ids = column("ids", &request.ids)?;
        let lengths = column("lengths", &request.lengths)?;
        let mut sequences = check_lengths(&lengths, ids.len(), model)?;
        check_ids(&ids, &sequences, model)?;
        let has_pairs = check_pairs(&column("pair_start", &request.pair_start)?, &mut sequences)?;
        let mut segments = check_segments(&column("segments", &request.segments)?, &mut sequences)?;
        let outputs = check_outputs(&request.outputs, head, model)?;
        check_size(head, &segments, &outputs)?;
        if head == Head::Tokens {
            segments = one_row_a_token(&segments, &mut sequences);
        }
        let lane = match request.lane() {
            v1::Lane::Online => Lane::Online,
            v1::Lane::Scoring => Lane::Scoring,
            v1::Lane::Bulk | v1::Lane::Unspecified => Lane::Bulk,
        };
        Ok(Self {
            head,
            lane,
            ids,
            sequences,
            segments,
            outputs,
            has_pairs,
        })
    }

    /// The smallest valid chunk: one token, one float32 row. For health probes.
    #[must_use]
    pub fn probe(model: &ModelConfig) -> Self {
        let token = model.vocab_rows.saturating_sub(1).min(1);
        Self {
            head: model.heads.first().copied().unwrap_or(Head::Embed),
            lane: Lane::Online,
            ids: vec![token],
            sequences: vec![Sequence {
                start: 0,
                len: 1,
                pair_start: 1,
                first_row: 0,
                num_rows: 1,
            }],
            segments: vec![(0, 1)],
            outputs: vec![RowFormat {
                dtype: v1::Dtype::Float32,
                dimensions: model.dimensions,
                normalize: model.normalize,
                row_bytes: 4 * model.dimensions as usize,
            }],
            has_pairs: false,
        }
    }

    /// Bytes of all rows of each sequence.
    pub fn result_bytes(&self) -> impl Iterator<Item = u64> {
        let row_bytes: usize = self.outputs.iter().map(|output| output.row_bytes).sum();
        self.sequences
            .iter()
            .map(move |sequence| (sequence.num_rows * row_bytes) as u64)
    }

    /// Ids of one sequence.
    #[must_use]
    pub fn ids_of(&self, sequence: &Sequence) -> &[u32] {
        &self.ids[sequence.start..sequence.start + sequence.len as usize]
    }
}

fn check_addressee(request: &v1::RunRequest, model: &ModelConfig) -> Result<(), Error> {
    if request.model != model.id {
        let message = format!("this worker serves {}", model.id);
        return Err(Error::new(ErrorKind::NotFound, message).in_field("model"));
    }
    if request.space != model.space {
        let message = format!("this worker's vectors are of space {}", model.space);
        return Err(Error::new(ErrorKind::WrongSpace, message).in_field("space"));
    }
    Ok(())
}

fn column(field: &str, bytes: &Bytes) -> Result<Vec<u32>, Error> {
    packed::to_u32s(bytes)
        .ok_or_else(|| Error::invalid(field, "the length is no multiple of 4 bytes"))
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn check_lengths(
    lengths: &[u32],
    num_ids: usize,
    model: &ModelConfig,
) -> Result<Vec<Sequence>, Error> {
    if lengths.is_empty() {
        return Err(Error::invalid("lengths", "at least one sequence is needed"));
    }
    let mut sequences = Vec::with_capacity(lengths.len());
    let mut start = 0_usize;
    for (index, &len) in lengths.iter().enumerate() {
        if len == 0 {
            return Err(
                Error::invalid("lengths", "a sequence has no tokens").at_index(index_u32(index))
            );
        }
        if len > model.max_length {
            let message = format!("{len} tokens are over the limit of {}", model.max_length);
            return Err(Error::invalid("lengths", message).at_index(index_u32(index)));
        }
        sequences.push(Sequence {
            start,
            len,
            pair_start: len,
            first_row: index,
            num_rows: 1,
        });
        start += len as usize;
    }
    if start != num_ids {
        let message = format!("lengths sum to {start}, but there are {num_ids} ids");
        return Err(Error::invalid("lengths", message));
    }
    Ok(sequences)
}

fn check_ids(ids: &[u32], sequences: &[Sequence], model: &ModelConfig) -> Result<(), Error> {
    let Some(at) = ids.iter().position(|id| *id >= model.vocab_rows) else {
        return Ok(());
    };
    let index = sequences.partition_point(|sequence| sequence.start <= at) - 1;
    let message = format!(
        "token id {} is not below {}, the vocabulary of {}",
        ids[at], model.vocab_rows, model.id
    );
    Err(Error::invalid("ids", message).at_index(index_u32(index)))
}

fn check_pairs(pair_starts: &[u32], sequences: &mut [Sequence]) -> Result<bool, Error> {
    if pair_starts.is_empty() {
        return Ok(false);
    }
    if pair_starts.len() != sequences.len() {
        return Err(Error::invalid(
            "pair_start",
            "there must be one for each sequence, or none",
        ));
    }
    for (index, (sequence, &start)) in sequences.iter_mut().zip(pair_starts).enumerate() {
        if start == 0 || start > sequence.len {
            return Err(
                Error::invalid("pair_start", "outside of its sequence").at_index(index_u32(index))
            );
        }
        sequence.pair_start = start;
    }
    Ok(sequences
        .iter()
        .any(|sequence| sequence.pair_start < sequence.len))
}

fn check_segments(segments: &[u32], sequences: &mut [Sequence]) -> Result<Vec<(u32, u32)>, Error> {
    if segments.is_empty() {
        return Ok(sequences.iter().map(|sequence| (0, sequence.len)).collect());
    }
    let (triples, rest) = segments.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(Error::invalid(
            "segments",
            "three values are needed for each",
        ));
    }
    for sequence in &mut *sequences {
        sequence.num_rows = 0;
    }
    let mut previous = 0;
    let mut num_pooled = 0;
    for (row, &[index, start, end]) in triples.iter().enumerate() {
        let Some(sequence) = sequences
            .get_mut(index as usize)
            .filter(|_| index >= previous)
        else {
            return Err(Error::invalid(
                "segments",
                "not in the order of the sequences",
            ));
        };
        if start >= end || end > sequence.len {
            return Err(
                Error::invalid("segments", "empty, or outside of its sequence").at_index(index),
            );
        }
        if sequence.num_rows == 0 {
            sequence.first_row = row;
            num_pooled = 0;
        }
        sequence.num_rows += 1;
        num_pooled += u64::from(end - start);
        if num_pooled > limits::MAX_POOLED_SHARE * u64::from(sequence.len) {
            let message = "the segments hold more than twice the tokens of their sequence";
            return Err(Error::invalid("segments", message).at_index(index));
        }
        previous = index;
    }
    if let Some(index) = sequences.iter().position(|sequence| sequence.num_rows == 0) {
        return Err(Error::invalid("segments", "a sequence has none").at_index(index_u32(index)));
    }
    Ok(triples
        .iter()
        .map(|&[_, start, end]| (start, end))
        .collect())
}

/// Refuses an answer that would not fit one message, before anything is made of that size.
fn check_size(head: Head, segments: &[(u32, u32)], outputs: &[RowFormat]) -> Result<(), Error> {
    let num_rows = match head {
        Head::Tokens => segments
            .iter()
            .map(|(start, end)| (end - start) as usize)
            .sum(),
        _ => segments.len(),
    };
    let row_bytes: usize = outputs.iter().map(|output| output.row_bytes).sum();
    let max_rows = (limits::MAX_RESULT_BYTES / row_bytes.max(1)).min(limits::MAX_ROWS);
    if num_rows <= max_rows {
        return Ok(());
    }
    let message = format!(
        "{num_rows} rows of {row_bytes} bytes are too many for one call, which may ask for \
         {max_rows}; send fewer sequences a call, or ask for fewer dimensions or a smaller dtype"
    );
    Err(Error::new(ErrorKind::TooLarge, message).in_field("segments"))
}

/// Cuts each segment into its tokens.
fn one_row_a_token(segments: &[(u32, u32)], sequences: &mut [Sequence]) -> Vec<(u32, u32)> {
    let mut rows = Vec::new();
    for sequence in sequences {
        let own = sequence.first_row..sequence.first_row + sequence.num_rows;
        sequence.first_row = rows.len();
        for &(start, end) in &segments[own] {
            rows.extend((start..end).map(|token| (token, token + 1)));
        }
        sequence.num_rows = rows.len() - sequence.first_row;
    }
    rows
}

fn check_outputs(
    outputs: &[v1::OutputSpec],
    head: Head,
    model: &ModelConfig,
) -> Result<Vec<RowFormat>, Error> {
    if outputs.is_empty() || outputs.len() > limits::MAX_OUTPUTS {
        let message = format!("1 to {} formats are needed", limits::MAX_OUTPUTS);
        return Err(Error::invalid("outputs", message));
    }
    outputs
        .iter()
        .map(|output| check_output(output, head, model))
        .collect()
}

fn check_output(
    output: &v1::OutputSpec,
    head: Head,
    model: &ModelConfig,
) -> Result<RowFormat, Error> {
    // The model's own modules say how a pooled vector is cut and scaled, and nothing of a token's.
    let (size, allowed, normalize) = match head {
        Head::Tokens => (model.token_dimensions, &[][..], false),
        _ => (
            model.dimensions,
            &model.allowed_dimensions[..],
            model.normalize,
        ),
    };
    let dimensions = if output.dimensions == 0 {
        size
    } else {
        output.dimensions
    };
    let is_listed = allowed.is_empty() || allowed.contains(&dimensions);
    if dimensions > size || (dimensions != size && !is_listed) {
        let message = if allowed.is_empty() {
            format!(
                "{dimensions} is not within 1 to {size}, the size of {}",
                model.id
            )
        } else {
            format!(
                "{dimensions} is not one of {allowed:?}, the sizes of {}",
                model.id
            )
        };
        return Err(Error::invalid("dimensions", message));
    }
    let normalize = match output.normalize() {
        v1::Normalize::Model => normalize,
        v1::Normalize::On => true,
        v1::Normalize::Off => false,
    };
    let dtype = output.dtype();
    let row_bytes = dtype.row_bytes(dimensions).ok_or_else(|| {
        Error::invalid(
            "dtype",
            format!("{dtype:?} cannot hold {dimensions} dimensions"),
        )
    })?;
    Ok(RowFormat {
        dtype,
        dimensions,
        normalize,
        row_bytes,
    })
}
