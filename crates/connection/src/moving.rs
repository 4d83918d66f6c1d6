//! A stream that has begun to say something, and fails when nothing has moved on it for too long, in
//! neither direction.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// As the head of a usual request has.
const AHEAD_BYTES: usize = 1_024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Moving<S> {
    /// Its first bytes, read to see that there are any.
    ahead: BytesMut,
    stream: S,
    limit: Duration,
    moved: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + Unpin> Moving<S> {
    /// Waits for the first bytes.
    ///
    /// # Errors
    /// There are none.
    pub(crate) async fn begin(mut stream: S, limit: Duration) -> io::Result<Self> {
        let mut ahead = BytesMut::with_capacity(AHEAD_BYTES);
        if stream.read_buf(&mut ahead).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self {
            ahead,
            stream,
            limit,
            moved: Instant::now(),
            timer: Box::pin(sleep(limit)),
        })
    }
}

impl<S> Moving<S> {
    /// Ready once nothing has moved for the limit.
    fn poll_still(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            if self.moved.elapsed() >= self.limit {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.moved + self.limit);
        }
    }

    fn note(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = written {
            self.moved = Instant::now();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Moving<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let num_bytes = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead[..num_bytes]);
            self.ahead.advance(num_bytes);
            return Poll::Ready(Ok(()));
        }
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.moved = Instant::now();
            return polled;
        }
        self.poll_still(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Moving<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
