//! Tests which peers get a connection to a member of a job.

use std::cell::RefCell;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::security::{
    AdmissionPolicy, AttemptName, Authority, CONNECT_TIMEOUT, ConnectError, Credentials, ExpectedPeer,
    HANDSHAKE_TIMEOUT, Identity, IdentityError, MAX_HANDSHAKES, MemberName, Protection, Service, Stream, Validity,
    connect, listen, listen_renewed,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_stream::StreamExt;

const DAY: Duration = Duration::from_secs(24 * 3600);
const BOTH: [Protection; 2] = [Protection::Encrypted, Protection::Authenticated];

fn agent(job: &str, attempt: u32, role: Role) -> MemberName {
    MemberName::Agent(AttemptName::new(job, attempt).unwrap(), AgentId::new(role, 0))
}

fn coordinator() -> MemberName {
    agent("ours", 2, Role::Coordinator)
}

fn valid_for_a_day() -> Validity {
    Validity::starting(SystemTime::now(), DAY)
}

fn identity(authority: &Authority, name: &MemberName) -> Identity {
    Identity::new(&authority.issue(name, valid_for_a_day()).unwrap()).unwrap()
}

/// Serves a port that sends a greeting directly after the handshake, and then echoes what admitted clients send.
async fn serve(identity: Identity, admit: AdmissionPolicy, protection: Protection) -> String {
    ThreadLog::install();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut incoming = listen(listener, "control", identity, admit, protection);
    tokio::spawn(async move {
        while let Some(stream) = incoming.next().await {
            tokio::spawn(echo(stream.unwrap()));
        }
    });
    address
}

async fn echo(mut stream: Stream) -> std::io::Result<()> {
    stream.write_all(b"welcome").await?;
    stream.flush().await?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..read]).await?;
        stream.flush().await?;
    }
}

/// Connects and returns the greeting and the echo of `payload`.
async fn try_echo(
    address: &str,
    identity: &Identity,
    protection: Protection,
    payload: &[u8],
) -> Result<Vec<u8>, ConnectError> {
    let stream = connect(address, identity, &ExpectedPeer::new(coordinator()), protection).await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut echoed = vec![0; b"welcome".len() + payload.len()];
    let write = async {
        writer.write_all(payload).await.unwrap();
        writer.flush().await.unwrap();
    };
    let (_, read) = tokio::join!(write, reader.read_exact(&mut echoed));
    read.unwrap();
    Ok(echoed)
}

#[tokio::test]
async fn members_connect_and_others_are_rejected_with_a_reason() {
    let (ours, other) = (Authority::new(valid_for_a_day()).unwrap(), Authority::new(valid_for_a_day()).unwrap());
    let payload: Vec<u8> = (0..300_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    for protection in BOTH {
        let address = serve(identity(&ours, &coordinator()), AdmissionPolicy::Agents, protection).await;
        let reach = async |name: &MemberName| try_echo(&address, &identity(&ours, name), protection, &payload).await;
        let refusals = [
            (agent("theirs", 2, Role::Cs2), "its certificate is of job theirs, this is job ours"),
            (agent("ours", 1, Role::Cs2), "its certificate is of attempt 1, this is attempt 2"),
            (MemberName::Launcher(AttemptName::new("ours", 2).unwrap()), "is not authorized for this port"),
            (MemberName::Service(Service::Operator), "is not authorized for this port"),
        ];
        for (name, reason) in refusals {
            let error = reach(&name).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        // The right name, in a certificate that another authority signed.
        let mut forged = other.issue(&agent("ours", 2, Role::Cs2), valid_for_a_day()).unwrap();
        forged.authority = ours.certificate().to_owned();
        let forged = Identity::new(&forged).unwrap();
        let error = try_echo(&address, &forged, protection, &payload).await.unwrap_err();
        assert!(matches!(error, ConnectError::Handshake(_)), "{error}");
        let echoed = reach(&agent("ours", 2, Role::Cs2)).await.unwrap();
        assert!(echoed.strip_prefix(b"welcome").is_some_and(|echoed| echoed == payload));
    }
}

#[tokio::test]
async fn connection_never_downgrades_protection() {
    let ours = Authority::new(valid_for_a_day()).unwrap();
    let member = identity(&ours, &agent("ours", 2, Role::Cs2));
    for (served, asked) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        let address = serve(identity(&ours, &coordinator()), AdmissionPolicy::Agents, served).await;
        let error = try_echo(&address, &member, asked, b"x").await.unwrap_err();
        assert!(matches!(error, ConnectError::Handshake(_)), "{error}");
    }
}

/// The system accepts the TCP connection, and nothing answers.
#[tokio::test(start_paused = true)]
async fn connect_gives_up_if_the_peer_is_silent() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let identity = identity(&Authority::new(valid_for_a_day()).unwrap(), &agent("ours", 2, Role::Cs2));
    let began = tokio::time::Instant::now();
    let address = silent.local_addr().unwrap().to_string();
    let connected = connect(&address, &identity, &ExpectedPeer::new(coordinator()), Protection::Encrypted).await;
    assert!(matches!(connected, Err(ConnectError::TimedOut)), "{connected:?}");
    assert_eq!(began.elapsed().as_secs(), CONNECT_TIMEOUT.as_secs());
}

#[tokio::test]
async fn client_sends_nothing_to_a_wrongly_named_server() {
    let ours = Authority::new(valid_for_a_day()).unwrap();
    let member = identity(&ours, &agent("ours", 2, Role::Cs2));
    let of_host =
        ours.issue_for_hosts(&agent("ours", 1, Role::Coordinator), &["localhost".into()], valid_for_a_day()).unwrap();
    let servers = [
        Identity::new(&of_host).unwrap(),
        identity(&ours, &agent("theirs", 2, Role::Coordinator)),
        identity(&ours, &agent("ours", 2, Role::MemoryX)),
    ];
    for server in servers {
        let found = server.name().to_string();
        let address = serve(server, AdmissionPolicy::Agents, Protection::Encrypted).await;
        let expected = ExpectedPeer::with_host_fallback(coordinator(), "localhost".into());
        let error = connect(&address, &member, &expected, Protection::Encrypted).await.unwrap_err().to_string();
        assert_eq!(error, format!("expected {}, found {found}", coordinator()));
    }
}

thread_local! {
    static THREAD_LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Collects what a thread logs. A test's runtime has one thread, so this is the log of the test.
struct ThreadLog;

impl ThreadLog {
    /// Installs the collector for all threads. It must be there before the first record: tracing may remember for good
    /// to skip the records of a call site that is first reached while a subscriber is being installed.
    fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            let subscriber = tracing_subscriber::fmt().with_writer(|| Self).with_ansi(false).finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
    }

    fn text() -> String {
        THREAD_LOG.with_borrow(|log| String::from_utf8(log.clone()).unwrap())
    }
}

impl std::io::Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        THREAD_LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Peers without TLS or without a certificate are rejected and logged; peers that send nothing more are dropped for
/// others.
#[tokio::test]
async fn rejected_connections_are_logged_and_block_no_other() {
    let ours = Authority::new(valid_for_a_day()).unwrap();
    let server = ours.issue_for_hosts(&coordinator(), &["localhost".into()], valid_for_a_day()).unwrap();
    let address = serve(Identity::new(&server).unwrap(), AdmissionPolicy::Agents, Protection::Encrypted).await;

    let mut http = TcpStream::connect(&address).await.unwrap();
    http.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = http.read_to_end(&mut answer).await;
    assert!(!answer.windows(7).any(|bytes| bytes == b"welcome"), "{answer:?}");

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ours.certificate().as_bytes()).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"millrace/encrypted".to_vec(), b"h2".to_vec()];
    let tcp = TcpStream::connect(&address).await.unwrap();
    let host = ServerName::try_from("localhost").unwrap();
    let anonymous = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(host, tcp).await;
    let answer = match anonymous {
        Ok(mut tls) => tls.read_u8().await,
        Err(error) => Err(error),
    };
    assert!(answer.is_err(), "without a certificate");

    let mut idle = Vec::new();
    for _ in 0..MAX_HANDSHAKES + 40 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(&[22]).await.unwrap();
        idle.push(stream);
    }
    let member = identity(&ours, &agent("ours", 2, Role::Cs2));
    let began = tokio::time::Instant::now();
    assert_eq!(try_echo(&address, &member, Protection::Encrypted, b"x").await.unwrap(), b"welcomex");
    assert!(began.elapsed() < HANDSHAKE_TIMEOUT);

    let text = ThreadLog::text();
    let rejected: Vec<_> = text.lines().filter(|line| line.contains("rejected a connection from 127.0.0.1")).collect();
    assert!(rejected.iter().any(|line| line.contains("peer sent no certificates")), "{text}");
    assert!(rejected.len() <= 40, "{}", rejected.len());
}

/// A clock that always returns the same time.
#[derive(Debug)]
struct FixedClock(SystemTime);

impl TimeProvider for FixedClock {
    fn current_time(&self) -> Option<UnixTime> {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        Some(UnixTime::since_unix_epoch(since))
    }
}

#[tokio::test]
async fn certificates_expire_and_authorities_rotate() {
    let now = SystemTime::now();
    let validity = |from, to| Validity::starting(now + from * DAY, (to - from) * DAY);
    let old = Authority::new(validity(0, 365)).unwrap();
    let new = Authority::new(validity(185, 550)).unwrap();
    let trusting_both = |mut credentials: Credentials| {
        credentials.authority = format!("{}{}", new.certificate(), old.certificate());
        credentials
    };
    // One coordinator started before the new authority existed, the other after.
    let early = old.issue(&coordinator(), validity(100, 365)).unwrap();
    let late = trusting_both(new.issue(&coordinator(), validity(200, 550)).unwrap());
    let member = MemberName::Service(Service::Operator);
    let client = |authority: &Authority, from, to| trusting_both(authority.issue(&member, validity(from, to)).unwrap());
    let reach = async |server: &Credentials, client: &Credentials, day: u32| {
        let identity = |credentials| Identity::with_clock(credentials, Arc::new(FixedClock(now + day * DAY))).unwrap();
        let address = serve(identity(server), AdmissionPolicy::Controllers, Protection::Encrypted).await;
        try_echo(&address, &identity(client), Protection::Encrypted, b"x").await
    };
    let by_old = client(&old, 210, 217);
    reach(&early, &by_old, 211).await.unwrap();
    reach(&late, &by_old, 211).await.unwrap();
    // The early coordinator does not trust the new authority.
    reach(&early, &client(&new, 210, 217), 211).await.unwrap_err();
    // Both ends check the validity.
    reach(&late, &by_old, 218).await.unwrap_err();
    reach(&early, &client(&old, 360, 500), 366).await.unwrap_err();
    reach(&late, &client(&new, 360, 367), 366).await.unwrap();
}

#[test]
fn credentials_that_can_not_be_used_are_named() {
    let ours = Authority::new(valid_for_a_day()).unwrap();
    let good = ours.issue(&coordinator(), valid_for_a_day()).unwrap();
    assert_eq!(format!("{good:?}"), "Credentials { .. }");
    assert_eq!(Credentials::from_json_line(&good.to_json_line()).unwrap(), good);
    assert!(matches!(Credentials::from_json_line("{}"), Err(IdentityError::JsonLine)));

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tls.crt"), &good.certificate).unwrap();
    std::fs::write(dir.path().join("tls.key"), &good.key).unwrap();
    let error = Identity::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("ca.crt"), "{error}");
    std::fs::write(dir.path().join("ca.crt"), &good.authority).unwrap();
    assert_eq!(*Identity::read(dir.path()).unwrap().name(), coordinator());

    let with = |change: fn(&mut Credentials, &Credentials)| {
        let (mut bad, another) = (good.clone(), ours.issue(&coordinator(), valid_for_a_day()).unwrap());
        change(&mut bad, &another);
        Identity::new(&bad).unwrap_err()
    };
    assert!(matches!(with(|bad, _| bad.key.clear()), IdentityError::Pem("key")));
    assert!(matches!(with(|bad, _| bad.authority.clear()), IdentityError::Pem("authority")));
    assert!(matches!(with(|bad, _| bad.certificate.clone_from(&bad.authority)), IdentityError::NoName));
    assert!(matches!(with(|bad, another| bad.key.clone_from(&another.key)), IdentityError::Unusable(_)));
}

/// A coordinator of 0.1.0 has a certificate of the authority for its host, without a name. It is accepted over HTTP/2
/// in TLS until its attempt has ended.
#[tokio::test]
async fn v0_1_0_coordinator_is_verified_by_host_name() {
    let ours = Authority::new(valid_for_a_day()).unwrap();
    let issuer = rcgen::Issuer::new(authority_params(), rcgen::KeyPair::from_pem(&ours.key()).unwrap());
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["job.team.svc".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let client_roots = {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ours.certificate().as_bytes()).unwrap()).unwrap();
        Arc::new(roots)
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(client_roots, provider.clone());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            if let Ok(mut tls) = acceptor.accept(tcp).await {
                let _ = tls.write_all(b"journal").await;
                let _ = tls.flush().await;
            }
        }
    });
    let operator = identity(&ours, &MemberName::Service(Service::Operator));
    let reach = async |expected: ExpectedPeer| connect(&address, &operator, &expected, Protection::Encrypted).await;
    let mut read = [0; 7];
    let mut stream = reach(ExpectedPeer::with_host_fallback(coordinator(), "job.team.svc".into())).await.unwrap();
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"journal");
    let error = reach(ExpectedPeer::with_host_fallback(coordinator(), "another.team.svc".into())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unexpected { .. }), "{error}");
    reach(ExpectedPeer::new(coordinator())).await.unwrap_err();
}

/// Returns the name that the authorities of every version have.
fn authority_params() -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "millrace jobs");
    params
}

#[tokio::test]
async fn renewed_identity_serves_later_connections() {
    let server = || MemberName::Service(Service::RestServer);
    let [old, new] = [(); 2].map(|()| Authority::new(valid_for_a_day()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (renewals, newest) = watch::channel(identity(&old, &server()));
    let mut incoming = listen_renewed(listener, "uploads", newest, AdmissionPolicy::BlobReaders, Protection::Encrypted);
    tokio::spawn(async move { while incoming.next().await.is_some() {} });
    let fetcher = MemberName::for_fetcher("ours").unwrap();
    let connect_with = async |authority: &Authority| {
        let expected = ExpectedPeer::new(server());
        connect(&address, &identity(authority, &fetcher), &expected, Protection::Encrypted).await.map(drop)
    };
    connect_with(&old).await.unwrap();
    connect_with(&new).await.unwrap_err();
    renewals.send_replace(identity(&new, &server()));
    connect_with(&new).await.unwrap();
    connect_with(&old).await.unwrap_err();
}
