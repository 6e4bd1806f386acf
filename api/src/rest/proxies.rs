//! The address of a client behind proxies. Only what trusted proxies have written counts.
//!
//! ```text
//! client 203.0.113.7 ──► proxy 10.0.0.2 ──► proxy 10.0.0.3 ──► this server
//! X-Forwarded-For: 198.51.100.1, 203.0.113.7, 10.0.0.2     trusted: 10.0.0.0/8
//!                  (the client's) (the client) (its first proxy)
//! ```
//!
//! Each proxy appends the address of its peer, so the list is read from its end: the first address that belongs to no
//! trusted proxy is the client's. What stands before it was written by the client itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::{ConnectInfo, Request};
use axum::http::{Extensions, HeaderMap, header};
use ipnet::IpNet;

/// Limit on the hops that are read.
const MAX_HOPS: usize = 16;

/// The networks of trusted proxies.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
}

impl TrustedProxies {
    pub const fn new(networks: Vec<IpNet>) -> Self {
        Self { networks }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Returns the address of the client of a request that `neighbour` has sent.
    pub fn client(&self, neighbour: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = neighbour;
        if !self.trusts(client) {
            return client;
        }
        for hop in hops(headers).into_iter().rev().take(MAX_HOPS) {
            // An entry that is no address was not written by a proxy that knows its peer, so the entries before it are
            // not trusted either.
            let Some(address) = hop else { return client };
            client = address;
            if !self.trusts(client) {
                break;
            }
        }
        client
    }
}

/// Address of the client, an extension of its request.
#[derive(Clone, Copy)]
struct ClientAddress(IpAddr);

/// Determines the address of a request's client, and keeps it for [`client_address`].
pub fn set_client_address(proxies: &TrustedProxies, request: &mut Request) -> IpAddr {
    let client = proxies.client(connection_address(request.extensions()), request.headers());
    request.extensions_mut().insert(ClientAddress(client));
    client
}

/// Returns the address of the client: the one that trusted proxies report, or that of the connection.
pub fn client_address(extensions: &Extensions) -> IpAddr {
    extensions.get::<ClientAddress>().map_or_else(|| connection_address(extensions), |ClientAddress(address)| *address)
}

/// Returns the address and port of the other end of the connection.
pub fn connection_socket(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| *address)
}

/// Returns the address of the other end of the connection.
fn connection_address(extensions: &Extensions) -> IpAddr {
    connection_socket(extensions).map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip().to_canonical())
}

/// Returns the addresses that proxies have written, the newest last: those of `X-Forwarded-For`, or those of
/// `Forwarded` if there is no such header.
fn hops(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let texts = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(|hop| hop.trim().to_owned()).collect()
    };
    let hops = texts("x-forwarded-for");
    if !hops.is_empty() {
        return hops.iter().map(|hop| address(hop)).collect();
    }
    let of_element = |element: &String| {
        let pairs = element.split(';').filter_map(|pair| pair.split_once('='));
        let mut by = pairs.filter(|(key, _)| key.trim().eq_ignore_ascii_case("for"));
        address(by.next()?.1.trim().trim_matches('"'))
    };
    texts(header::FORWARDED.as_str()).iter().map(of_element).collect()
}

/// Parses an address with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let plain = text.parse::<IpAddr>().ok();
    let bracketed = || text.strip_prefix('[')?.split_once(']')?.0.parse().ok();
    let with_port = || text.rsplit_once(':')?.0.parse::<std::net::Ipv4Addr>().ok().map(IpAddr::from);
    plain.or_else(bracketed).or_else(with_port).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxy_headers_are_used() {
        let proxies = TrustedProxies::new(["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()).into());
        let client = |neighbour: &str, name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            proxies.client(neighbour.parse().unwrap(), &headers).to_string()
        };
        let xff = "x-forwarded-for";
        for (neighbour, name, value, expected) in [
            ("10.0.0.3", xff, "198.51.100.1, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
            ("203.0.113.9", xff, "198.51.100.1", "203.0.113.9"),
            ("10.0.0.3", xff, "198.51.100.1, nobody", "10.0.0.3"),
            ("10.0.0.3", xff, "203.0.113.7:4711", "203.0.113.7"),
            ("10.0.0.3", xff, "10.1.1.1, 10.0.0.2", "10.1.1.1"),
            ("fd00::1", xff, "2001:db8::7", "2001:db8::7"),
            ("10.0.0.3", "forwarded", "for=198.51.100.1, For=\"[2001:db8::7]:80\";proto=https", "2001:db8::7"),
            ("10.0.0.3", "forwarded", "for=unknown", "10.0.0.3"),
            ("10.0.0.3", "x-other", "1.2.3.4", "10.0.0.3"),
        ] {
            assert_eq!(client(neighbour, name, value), expected, "{neighbour} {name}: {value}");
        }
        let untold = TrustedProxies::default().client("10.0.0.3".parse().unwrap(), &HeaderMap::new());
        assert_eq!(untold.to_string(), "10.0.0.3");
    }
}
