//! Reads and discards what a handler leaves unread of a request's body, so that the client receives the response.
//!
//! Most clients send the whole body before they read the response. A server that closes a connection with unread data
//! resets it, and the client may lose the response with it (RFC 9112, section 9.6): it sees a broken connection instead
//! of the reason of the error. Proxies such as `kubectl port-forward` then close other connections too.
//!
//! Up to [`MAX_DISCARDED_BYTES`] are read, for up to [`DISCARD_TIMEOUT`]. If that is not the whole body, the response
//! has the header `Connection: close`, and the connection is closed after it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt as _;
use http_body::{Frame, SizeHint};

use super::MAX_BODY_BYTES;

/// Limit on the bytes that are read after the handler. A body that is slightly too long is read to its end.
pub const MAX_DISCARDED_BYTES: usize = 2 * MAX_BODY_BYTES;
/// Time limit for reading after the handler.
pub const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a request, reads the rest of its body, and returns the response.
pub async fn discard_unread_body(request: Request, next: Next) -> Response {
    let expects_continue = request.headers().contains_key(header::EXPECT);
    let (parts, body) = request.into_parts();
    let body = Arc::new(Mutex::new(ObservedBody { body, is_polled: false }));
    let mut response = next.run(Request::from_parts(parts, Body::new(SharedBody(Arc::clone(&body))))).await;
    // A handler that continues after its response reads the body itself.
    let Some(rest) = Arc::into_inner(body) else { return response };
    let rest = rest.into_inner().unwrap_or_else(PoisonError::into_inner);
    // A client that expects `100 Continue` sends no body before this server has polled it.
    let is_sent = !expects_continue || rest.is_polled;
    let is_closed = response.headers().contains_key(header::CONNECTION);
    if !is_closed && (!is_sent || !discard(rest.body).await) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads the body, and returns whether its end was reached within the limits.
async fn discard(body: Body) -> bool {
    if http_body::Body::is_end_stream(&body) {
        return true;
    }
    let mut blocks = body.into_data_stream();
    let read = async {
        let mut bytes = 0;
        while bytes <= MAX_DISCARDED_BYTES {
            match blocks.next().await {
                Some(Ok(block)) => bytes += block.len(),
                Some(Err(_)) => return false,
                None => return true,
            }
        }
        false
    };
    tokio::time::timeout(DISCARD_TIMEOUT, read).await.unwrap_or(false)
}

/// A body, and whether a part of it has been requested from the client.
struct ObservedBody {
    body: Body,
    is_polled: bool,
}

/// The body as the handler receives it.
struct SharedBody(Arc<Mutex<ObservedBody>>);

impl SharedBody {
    fn lock(&self) -> MutexGuard<'_, ObservedBody> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl http_body::Body for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut shared = self.lock();
        shared.is_polled = true;
        Pin::new(&mut shared.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Connects to a server that rejects every request without reading its body.
    async fn connect() -> BufReader<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/", post(async || (StatusCode::PAYLOAD_TOO_LARGE, "too long")))
            .layer(axum::middleware::from_fn(discard_unread_body));
        tokio::spawn(async move { axum::serve(listener, router).await });
        BufReader::new(TcpStream::connect(address).await.unwrap())
    }

    /// Sends a whole request, then reads the response; returns its status line and headers.
    async fn exchange(client: &mut BufReader<TcpStream>, headers: &str, body: &[u8]) -> std::io::Result<String> {
        client.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n").as_bytes()).await?;
        client.write_all(body).await?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if client.read_line(&mut head).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        client.read_exact(&mut [0; "too long".len()]).await?;
        Ok(head.to_lowercase())
    }

    #[tokio::test]
    async fn connection_of_a_rejected_body_is_reused() {
        let mut client = connect().await;
        for bytes in [MAX_BODY_BYTES + (1 << 20), 3, 0] {
            let head =
                exchange(&mut client, &format!("Content-Length: {bytes}\r\n"), &vec![b' '; bytes]).await.unwrap();
            assert!(head.starts_with("http/1.1 413") && !head.contains("connection: close"), "{head}");
        }
    }

    #[tokio::test]
    async fn connection_of_a_body_beyond_the_limit_is_closed() {
        let mut client = connect().await;
        let headers = format!("Content-Length: {}\r\n", 10 * MAX_DISCARDED_BYTES);
        let head = exchange(&mut client, &headers, &vec![b' '; MAX_DISCARDED_BYTES + 1]).await.unwrap();
        assert!(head.contains("connection: close"), "{head}");
    }

    #[tokio::test]
    async fn body_that_waits_for_permission_is_not_requested() {
        let mut client = connect().await;
        let head = exchange(&mut client, "Content-Length: 9\r\nExpect: 100-continue\r\n", b"").await.unwrap();
        assert!(head.starts_with("http/1.1 413") && head.contains("connection: close"), "{head}");
    }
}
