//! Measures the cost of authentication and encryption of connections, over loopback.
//!
//! `cargo run --release -p millrace-protocol --example connections`
//!
//! Transfers chunks of a link's size over plain TCP, over an authenticated connection and over an encrypted one, and
//! opens connections of each kind. The three kinds are measured alternately, several times, and the medians are printed
//! as JSON: CPU seconds per GiB of both ends together, GiB per second, and milliseconds per connection.

use std::time::{Duration, Instant, SystemTime};

use millrace_protocol::packet::MAX_PAYLOAD_BYTES;
use millrace_protocol::security::{
    AdmissionPolicy, AttemptName, AuthenticatedIncoming, Authority, ExpectedPeer, Identity, MemberName, Protection,
    Validity, connect, listen,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Bytes transferred in one measurement.
const BYTES: usize = 2 << 30;
/// Connections opened in one measurement.
const CONNECTIONS: u32 = 200;
/// Number of measurements of each kind.
const REPEATS: usize = 9;

/// Returns the CPU seconds of all threads of this process. Threads live as long as the process, so none is lost.
fn cpu_seconds() -> Result<f64, Failed> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += stat.split_whitespace().next().ok_or("no figures")?.parse::<u64>()?;
    }
    Ok(nanoseconds as f64 * 1e-9)
}

/// Returns wall and CPU seconds of transferring [`BYTES`] from one end to the other.
async fn moved<R, W>(mut reader: R, mut writer: W) -> Result<(f64, f64), Failed>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (began, cpu) = (Instant::now(), cpu_seconds()?);
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; MAX_PAYLOAD_BYTES];
        let mut left = BYTES;
        while left > 0 {
            match reader.read(&mut buffer).await? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => left -= read.min(left),
            }
        }
        Ok::<(), std::io::Error>(())
    });
    let chunk = vec![1; MAX_PAYLOAD_BYTES];
    for _ in 0..BYTES / MAX_PAYLOAD_BYTES {
        writer.write_all(&chunk).await?;
    }
    writer.flush().await?;
    reading.await??;
    Ok((began.elapsed().as_secs_f64(), cpu_seconds()? - cpu))
}

/// Two members of a job, one of which accepts connections of the other.
struct Pair {
    client: Identity,
    expected: ExpectedPeer,
    address: String,
    incoming: AuthenticatedIncoming,
    protection: Protection,
}

impl Pair {
    async fn new(protection: Protection) -> Result<Self, Failed> {
        let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
        let (authority, attempt) = (Authority::new(validity)?, AttemptName::new("bench", 1)?);
        let [shard, system] = ["memoryx-0", "cs2-0"].map(|agent| MemberName::for_agent(attempt.clone(), agent));
        let (shard, system) = (shard?, system?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let server = Identity::new(&authority.issue(&shard, validity)?)?;
        let incoming = listen(listener, "data", server, AdmissionPolicy::Agents, protection);
        let client = Identity::new(&authority.issue(&system, validity)?)?;
        Ok(Self { client, expected: ExpectedPeer::new(shard), address, incoming, protection })
    }

    async fn connect(&mut self) -> Result<(impl AsyncRead + Unpin + use<>, impl AsyncWrite + Unpin + use<>), Failed> {
        let dialled = connect(&self.address, &self.client, &self.expected, self.protection);
        let (dialled, accepted) = tokio::join!(dialled, self.incoming.next());
        Ok((accepted.ok_or("the port is closed")??, dialled?))
    }
}

/// Returns both ends of a plain connection over which as many bytes were exchanged as in a handshake: the system sizes
/// its buffers by how a connection begins.
async fn plain(listener: &TcpListener) -> Result<(TcpStream, TcpStream), Failed> {
    let address = listener.local_addr()?;
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut dialled, (mut accepted, _)) = (dialled?, accepted?);
    dialled.set_nodelay(true)?;
    accepted.set_nodelay(true)?;
    for bytes in [300, 1200] {
        let mut buffer = vec![0; bytes];
        dialled.write_all(&buffer).await?;
        accepted.read_exact(&mut buffer).await?;
        accepted.write_all(&buffer).await?;
        dialled.read_exact(&mut buffer).await?;
    }
    Ok((accepted, dialled))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut authenticated = Pair::new(Protection::Authenticated).await?;
    let mut encrypted = Pair::new(Protection::Encrypted).await?;
    let kinds = ["plain", "authenticated", "encrypted"];
    let mut wall = [const { Vec::new() }; 3];
    let mut cpu = wall.clone();
    let mut handshakes = wall.clone();
    for _ in 0..REPEATS {
        let (reader, writer) = plain(&listener).await?;
        let first = moved(reader, writer).await?;
        let (reader, writer) = authenticated.connect().await?;
        let second = moved(reader, writer).await?;
        let (reader, writer) = encrypted.connect().await?;
        let third = moved(reader, writer).await?;
        for (kind, (seconds, used)) in [first, second, third].into_iter().enumerate() {
            wall[kind].push(seconds);
            cpu[kind].push(used);
        }
        for (kind, times) in handshakes.iter_mut().enumerate() {
            let began = Instant::now();
            for _ in 0..CONNECTIONS {
                match kind {
                    0 => drop(plain(&listener).await?),
                    1 => drop(authenticated.connect().await?),
                    _ => drop(encrypted.connect().await?),
                }
            }
            times.push(1e3 * began.elapsed().as_secs_f64() / f64::from(CONNECTIONS));
        }
    }
    let gib = BYTES as f64 / f64::from(1 << 30);
    let figures = kinds.iter().zip(wall).zip(cpu).zip(handshakes).map(|(((kind, wall), cpu), handshake)| {
        let figures = serde_json::json!({
            "cpu_seconds_per_gib": median(cpu) / gib,
            "gib_per_second": gib / median(wall),
            "milliseconds_per_connection": median(handshake),
        });
        ((*kind).to_owned(), figures)
    });
    println!("{}", serde_json::to_string_pretty(&serde_json::Value::Object(figures.collect()))?);
    Ok(())
}
