//! HTTPS: with a certificate that is given, or one that the server makes for itself and keeps.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// For a client to finish its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections whose handshake is done and which nobody has taken yet.
const AHEAD: usize = 64;
/// After the system refused a connection, for lack of something.
const PAUSE: Duration = Duration::from_millis(100);

/// A certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, with those between it and an authority behind it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Files {
    /// A certificate of the server's own in `dir`, for these names; made, where there is none yet.
    ///
    /// # Errors
    /// It can't be made or kept.
    pub fn own(dir: &Path, names: &[String]) -> anyhow::Result<Self> {
        let files = Self { certificate: dir.join("certificate.pem"), key: dir.join("key.pem") };
        if files.certificate.exists() && files.key.exists() {
            return Ok(files);
        }
        std::fs::create_dir_all(dir).with_context(|| format!("can't make the directory {}", dir.display()))?;
        let made = rcgen::generate_simple_self_signed(names.to_vec()).context("can't make a certificate")?;
        write(&files.key, &made.signing_key.serialize_pem(), 0o600)?;
        write(&files.certificate, &made.cert.pem(), 0o644)?;
        Ok(files)
    }

    /// What a server shows.
    ///
    /// # Errors
    /// The files can't be read, or do not belong together.
    pub fn config(&self) -> anyhow::Result<ServerConfig> {
        let Self { certificate, key } = self;
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| format!("can't read certificates in PEM from {}", certificate.display()))?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .with_context(|| format!("can't read a key in PEM from {}", key.display()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .with_context(|| format!("{} and {} do not belong together", certificate.display(), key.display()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path);
    let written = open.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("can't write {}", path.display()))
}

/// Connections after their handshake. A client that is slow with it keeps nobody waiting.
pub struct TlsListener {
    address: SocketAddr,
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    /// Takes connections of `listener` from now on.
    ///
    /// # Errors
    /// It has no address.
    pub fn new(listener: TcpListener, config: ServerConfig) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (taken, ready) = mpsc::channel(AHEAD);
        tokio::spawn(take(listener, TlsAcceptor::from(Arc::new(config)), taken));
        Ok(Self { address, ready })
    }
}

async fn take(listener: TcpListener, acceptor: TlsAcceptor, taken: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>) {
    while !taken.is_closed() {
        let (stream, peer) = tokio::select! {
            connection = listener.accept() => match connection {
                Ok(connection) => connection,
                Err(error) => {
                    log::warn!("a connection could not be taken: {error}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = taken.closed() => return,
        };
        let (acceptor, taken) = (acceptor.clone(), taken.clone());
        tokio::spawn(async move {
            // Whoever does not speak TLS, or not in time, is not answered.
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                let _ = taken.send((stream, peer)).await;
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The other end lives as long as this one.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
