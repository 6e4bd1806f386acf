//! Whether the user of this machine that runs the server has sent a request.
//!
//! A server without tokens accepts requests of every program of its machine. Some operations need more: a Python
//! dataset is code that runs with the rights of the server's user, so that only this user may submit it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The tables of TCP sockets of this machine. Each line has the addresses and the owner of a socket.
const SOCKET_TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a connected socket in them.
const ESTABLISHED: &str = "01";

/// Returns whether the client's end of a connection to port `server_port` belongs to the user of this process. `client`
/// is the address of that end. Blocks.
pub fn is_own_socket(client: SocketAddr, server_port: u16) -> bool {
    let tables = SOCKET_TABLES.iter().filter_map(|table| std::fs::read_to_string(table).ok());
    let owners: Vec<u32> = tables.flat_map(|table| owners(&table, client, server_port)).collect();
    let user = rustix::process::geteuid().as_raw();
    !owners.is_empty() && owners.iter().all(|owner| *owner == user)
}

/// Returns the owners of the connected sockets in `table` with the local address `client` and the remote port
/// `server_port`.
fn owners(table: &str, client: SocketAddr, server_port: u16) -> Vec<u32> {
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let owner = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [local, remote] = [socket_address(columns.get(1)?)?, socket_address(columns.get(2)?)?];
        // A socket that is closed already is listed without its owner.
        let is_wanted = local == client && remote.port() == server_port && *columns.get(3)? == ESTABLISHED;
        columns.get(7)?.parse().ok().filter(|_| is_wanted)
    };
    table.lines().filter_map(owner).collect()
}

/// Parses an address such as `0100007F:1F90`: words of 32 bits in the byte order of the machine, and a port.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words = address.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match *bytes.as_slice() {
        [a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn own_connection_is_recognized() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let server = listener.local_addr().unwrap();
            let client = TcpStream::connect(server).unwrap().local_addr().unwrap();
            assert!(!is_own_socket(client, server.port()), "the connection has been closed: {address}");
            let connection = TcpStream::connect(server).unwrap();
            let client = connection.local_addr().unwrap();
            assert!(is_own_socket(client, server.port()), "{address}");
            assert!(!is_own_socket(client, server.port() ^ 1));
        }
    }

    #[test]
    fn owner_is_that_of_the_clients_end() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     0: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n\
                     1: 0100007F:C001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 2 1\n\
                     2: 0100007F:C001 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 3 1\n\
                     2: 0100007F:C001 0200007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 3 1\n\
                     3: 0000000000000000FFFF00000100007F:C002 0000000000000000FFFF00000100007F:1F90 01 0 0 0 7\n\
                     4: zz:C001 0100007F:1F90";
        let found = |client: &str| owners(table, client.parse().unwrap(), 8080);
        assert_eq!(found("127.0.0.1:49153"), [1000]);
        assert_eq!(found("[::ffff:127.0.0.1]:49153"), [1000]);
        assert_eq!(found("127.0.0.1:49154"), [7]);
        assert!(found("127.0.0.1:80").is_empty());
    }
}
