//! Reads a TCP connection one TLS record at a time, so that bytes after the last record of a handshake stay in the
//! socket. A connection that continues without encryption needs them there.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes of a record's header: content type, version, length of the body.
const RECORD_HEADER_BYTES: usize = 5;

/// A TCP connection whose reads end at the end of a TLS record.
#[derive(Debug)]
pub struct TlsRecordStream {
    tcp: TcpStream,
    header: [u8; RECORD_HEADER_BYTES],
    /// Bytes of the header read so far.
    header_bytes: usize,
    /// Bytes of the body not yet read.
    body_left: usize,
    /// Whether reads end at the end of a record.
    bounded: bool,
    silent: bool,
}

impl TlsRecordStream {
    /// Wraps `tcp`. Reads end at the end of a record.
    pub const fn new(tcp: TcpStream) -> Self {
        Self { tcp, header: [0; RECORD_HEADER_BYTES], header_bytes: 0, body_left: 0, bounded: true, silent: true }
    }

    /// Removes the bound: reads return whatever is available.
    pub const fn read_past_records(&mut self) {
        self.bounded = false;
    }

    /// Returns whether nothing was ever received.
    pub const fn is_empty(&self) -> bool {
        self.silent
    }

    /// Returns a reference to the connection, for its addresses.
    pub const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    pub fn into_inner(self) -> TcpStream {
        self.tcp
    }

    /// Updates the position in the current record by the bytes that were read.
    fn advance(&mut self, bytes: &[u8]) {
        if self.header_bytes < RECORD_HEADER_BYTES {
            self.header[self.header_bytes..self.header_bytes + bytes.len()].copy_from_slice(bytes);
            self.header_bytes += bytes.len();
            if self.header_bytes == RECORD_HEADER_BYTES {
                self.body_left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            }
        } else {
            self.body_left -= bytes.len();
        }
        if self.header_bytes == RECORD_HEADER_BYTES && self.body_left == 0 {
            self.header_bytes = 0;
        }
    }
}

impl AsyncRead for TlsRecordStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.bounded {
            return Pin::new(&mut self.tcp).poll_read(cx, buf);
        }
        let record = if self.header_bytes < RECORD_HEADER_BYTES {
            RECORD_HEADER_BYTES - self.header_bytes
        } else {
            self.body_left
        };
        let max_bytes = record.min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(max_bytes));
        ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        self.silent &= read == 0;
        self.advance(part.filled());
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsRecordStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
