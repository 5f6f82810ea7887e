//! L31: the client's address comes from forwarded fields only for trusted proxies.
//! X38: unreadable fields identify no client.

use std::{borrow::Borrow, fmt::Debug, net::SocketAddr};

use http::Request;

use super::{ForwardingField::*, address::MAX_LINE, *};
use crate::sync::random::{Sequence, for_many};

/// A trusted peer. All addresses in 10.0.0.0/8 and fd00::/8 are trusted.
const PROXY: &str = "10.0.0.1";
const CLIENT: &str = "203.0.113.9";

/// Separated by bars.
const GARBAGE_HOPS: [&str; 4] = [
    "| |unknown|_hidden|localhost|1.2.3|1.2.3.4.5|01.2.3.4|1.2.3.4 5.6.7.8|1.2.3.4:|1.2.3.4:x",
    "1.2.3.4:65536|1.2.3.4:+80|1.2.3.4:000080|1.2.3.4/32|[1.2.3.4]|[::1|::1]|[::1]80|[::1]:|[]|:80",
    r#"fe80::1%eth0|[fe80::1%1]:80|fe80::1%25eth0|"1.2.3.4"|for=1.2.3.4|1.2.3.4:_|1.2.3.4:_a!"#,
    "2001:db8:0:0:0:0:0:1:4711",
];

/// Separated by bars.
const GARBAGE_ELEMENTS: [&str; 5] = [
    r#"| |;|for|for=|for=""|for=unknown|for=_hidden|for="_hidden:80"|proto=https|by=1.2.3.4|1.2.3.4"#,
    "=1.2.3.4|for = 1.2.3.4|for=1.2.3.4;for=1.2.3.4|for=1.2.3.4;For=_a|for=1.2.3.4;proto",
    r#"for=1.2.3.4 proto=http|fo r=1;for=1.2.3.4|for="1.2.3.4"x|for=x"1.2.3.4"|for=1.2.3.4"""#,
    r#"for=""1.2.3.4|for=1.2.3.\4|for=" 1.2.3.4"|for="1.2.3.4, 1.2.3.4"|for="fe80::1%eth0""#,
    r#"for=1.2.3.4;host=\""|for=1.2.3.4;host=a"b"|=a;for=1.2.3.4"#,
];

fn trusting(field: impl Borrow<ForwardingField>) -> ClientIp {
    client_ip().trusted_proxies(field.borrow().clone(), ["10.0.0.0/8", "fd00::/8"])
}

fn request<V: AsRef<[u8]>>(peer: Option<&str>, field: impl Borrow<ForwardingField>, lines: &[V]) -> Parts {
    let (mut parts, _) = Request::new(String::new()).into_parts();
    let name = field.borrow().name().unwrap();
    for line in lines {
        parts
            .headers
            .append(&name, HeaderValue::from_bytes(line.as_ref()).unwrap());
    }
    if let Some(peer) = peer {
        parts.extensions.insert(PeerAddress(SocketAddr::new(ip(peer), 4711)));
    }
    parts
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The client of a request from the trusted peer.
fn behind_proxy<V: AsRef<[u8]>>(field: impl Borrow<ForwardingField>, lines: &[V]) -> Option<IpAddr> {
    let field = field.borrow();
    let request = request(Some(PROXY), field, lines);
    let client = trusting(field).resolve(&request);
    assert_eq!(trusting(field).extract(&request).is_some(), client.is_some());
    client
}

#[track_caller]
fn assert_client<V: AsRef<[u8]> + Debug>(field: impl Borrow<ForwardingField>, lines: &[V], client: Option<&str>) {
    let field = field.borrow();
    assert_eq!(behind_proxy(field, lines), client.map(ip), "{field:?}: {lines:?}");
}

fn assert_clients(field: ForwardingField, table: &[(&[&str], &str)]) {
    for (lines, client) in table {
        assert_client(&field, lines, Some(client));
    }
}

/// The two fields with lists, and what precedes each address in them.
const LISTS: [(ForwardingField, &str); 2] = [(XForwardedFor, ""), (Forwarded, "for=")];

/// The client of a request from this peer.
fn seen(extractor: &ClientIp, peer: &str, field: ForwardingField, lines: &[&str]) -> Option<IpAddr> {
    extractor.resolve(&request(Some(peer), field, lines))
}

/// The key of a request without fields from this peer.
fn key(extractor: &ClientIp, peer: &str) -> Option<PartitionKey> {
    extractor.extract(&request::<&str>(Some(peer), XForwardedFor, &[]))
}

/// L31
#[test]
fn by_default_the_client_is_the_peer_whatever_the_fields_say() {
    for (field, name) in LISTS {
        let line = format!("{name}192.0.2.66");
        assert_eq!(seen(&client_ip(), PROXY, field, &[&line]), Some(ip(PROXY)));
    }
}

/// L31
#[test]
fn an_untrusted_peer_is_the_client_whatever_the_fields_say() {
    for peer in [CLIENT, "11.0.0.1", "2001:db8::1"] {
        for (field, lines) in [
            (XForwardedFor, &["192.0.2.66, 10.0.0.2", "10.0.0.3"][..]),
            (Forwarded, &["for=192.0.2.66, for=10.0.0.2"]),
            (real_ip(), &["192.0.2.66"]),
        ] {
            let trusting = trusting(&field);
            assert_eq!(seen(&trusting, peer, field, lines), Some(ip(peer)));
        }
    }
}

/// L31
#[test]
fn nothing_is_believed_from_an_unknown_peer() {
    let request = request(None, XForwardedFor, &["192.0.2.66"]);
    for extractor in [
        client_ip(),
        trusting(XForwardedFor),
        client_ip().trusted_proxies(XForwardedFor, ["0.0.0.0/0"]),
    ] {
        assert_eq!(extractor.resolve(&request), None);
        assert!(extractor.extract(&request).is_none());
    }
}

/// L31
#[test]
fn the_field_that_proxies_do_not_write_is_not_read() {
    let [list, forwarded] = LISTS;
    for (written, (other, name)) in [(Forwarded, list), (XForwardedFor, forwarded)] {
        let line = format!("{name}192.0.2.66");
        assert_eq!(seen(&trusting(written), PROXY, other, &[&line]), Some(ip(PROXY)));
    }
}

/// L31
#[test]
fn x_forwarded_for_is_walked_from_the_right_to_the_first_untrusted_hop() {
    assert_clients(
        XForwardedFor,
        &[
            (&[], PROXY),
            (&["203.0.113.9"], CLIENT),
            (&["192.0.2.66, 203.0.113.9"], CLIENT),
            (&["192.0.2.66,203.0.113.9,10.0.0.2 ,\t10.0.0.3"], CLIENT),
            (&["192.0.2.66, 10.9.9.9, 203.0.113.9, fd00::2"], CLIENT),
            // Several lines form one list.
            (&["192.0.2.66", "203.0.113.9"], CLIENT),
            (&["192.0.2.66, 203.0.113.9", "10.0.0.2", "10.0.0.3"], CLIENT),
            // All hops are trusted: the farthest hop sent the request.
            (&["10.0.0.4, 10.0.0.3", "10.0.0.2"], "10.0.0.4"),
        ],
    );
}

/// L31, X38
#[test]
fn an_unreadable_hop_behind_trusted_ones_leaves_the_client_unknown() {
    for ((field, name), garbage) in LISTS.into_iter().zip([&GARBAGE_HOPS[..], &GARBAGE_ELEMENTS]) {
        for garbage in garbage.iter().flat_map(|row| row.split('|')) {
            let line = format!("{name}192.0.2.66, {garbage}, {name}10.0.0.3, {name}10.0.0.2");
            assert_client(&field, &[line], None);
            assert_client(&field, &[&format!("{name}192.0.2.66"), garbage], None);
            let behind_a_client = format!("{garbage}, {name}203.0.113.9, {name}10.0.0.2");
            assert_client(&field, &[behind_a_client], Some(CLIENT));
        }
    }
    let wide = "１.2.3.4".as_bytes();
    for garbage in [
        &b"\xff"[..],
        b"1.2.3.4\xff",
        b"\xd9\xa1.2.3.4",
        wide,
        b"\xc2\xa01.2.3.4",
    ] {
        let line = [b"192.0.2.66, ", garbage, b", 10.0.0.3"].concat();
        assert_client(XForwardedFor, &[line], None);
    }
    let long = format!("for=\"1.2.3.4:_{}\"", "a".repeat(100));
    assert_client(Forwarded, &[long], None);
    assert_client(Forwarded, &[b"for=192.0.2.66;host=\xff"], None);
}

/// L31
#[test]
fn bytes_that_are_not_text_do_no_harm_to_what_is_right_of_them() {
    assert_client(XForwardedFor, &[b"\xff\xfe, 203.0.113.9"], Some(CLIENT));
    assert_client(Forwarded, &[b"for=\xff\xfe, for=203.0.113.9"], Some(CLIENT));
}

/// L31
#[test]
fn addresses_are_understood_with_ports_and_brackets() {
    for (hop, address) in [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:567", "192.0.2.1"),
        ("192.0.2.1:_port", "192.0.2.1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[::FFFF:c000:201]:80", "192.0.2.1"),
    ] {
        assert_client(XForwardedFor, &[hop], Some(address));
        assert_client(Forwarded, &[format!("for=\"{hop}\"")], Some(address));
        assert_client(Forwarded, &[format!("for={hop}")], Some(address));
    }
}

/// L31
#[test]
fn mapped_addresses_are_trusted_and_counted_as_ipv4() {
    let lines = ["203.0.113.9, ::ffff:10.0.0.2"];
    let mapped = request(Some("::ffff:10.0.0.1"), XForwardedFor, &lines);
    assert_eq!(trusting(XForwardedFor).resolve(&mapped), Some(ip(CLIENT)));
    for network in ["::ffff:10.0.0.0/104", "::FFFF:0a00:0/104", "::ffff:0:0/96"] {
        let extractor = client_ip().trusted_proxies(XForwardedFor, [network]);
        assert_eq!(extractor.resolve(&mapped), Some(ip(CLIENT)), "{network}");
    }
    // Networks of one family contain no addresses of the other.
    for (network, peer) in [("::/0", PROXY), ("0.0.0.0/0", "fd00::1"), ("::/90", PROXY)] {
        let extractor = client_ip().trusted_proxies(XForwardedFor, [network]);
        let client = seen(&extractor, peer, XForwardedFor, &["192.0.2.66"]);
        assert_eq!(client, Some(ip(peer)), "{network}");
    }
    assert_eq!(key(&client_ip(), "::ffff:192.0.2.1"), key(&client_ip(), "192.0.2.1"));
}

/// L31
#[test]
fn forwarded_is_walked_from_the_right_to_the_first_untrusted_hop() {
    assert_clients(
        Forwarded,
        &[
            (&["for=203.0.113.9"], CLIENT),
            (&["For=203.0.113.9;proto=https;by=10.0.0.1"], CLIENT),
            (&["host=example.com:8080 ; FOR=203.0.113.9 ;"], CLIENT),
            (&["for=192.0.2.66, for=203.0.113.9,\tfor=10.0.0.2"], CLIENT),
            (&["for=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["for=\"203.0.113.\\9\""], CLIENT),
            // If two lines differ, the last line is from the nearest proxy.
            (&["for=192.0.2.66", "for=203.0.113.9"], CLIENT),
            (&["for=203.0.113.9", "for=10.0.0.2"], CLIENT),
            (&["for=10.0.0.3", "for=10.0.0.2"], "10.0.0.3"),
        ],
    );
}

/// L31
#[test]
fn commas_semicolons_and_escapes_inside_of_quotes_cut_nothing() {
    assert_clients(
        Forwarded,
        &[
            (&[r#"for=203.0.113.9;host="a, for=192.0.2.66""#], CLIENT),
            (&[r#"for=203.0.113.9;host="a\", for=192.0.2.66""#], CLIENT),
            (&[r#"for=203.0.113.9;host="a\\", for=10.0.0.2"#], CLIENT),
            (&[r#"host="a;for=192.0.2.66;b";for=203.0.113.9"#], CLIENT),
            (&[r#"for=192.0.2.66;host="a,, \"b\",", for=203.0.113.9"#], CLIENT),
            (&[r#"for=203.0.113.9;host="""#], CLIENT),
        ],
    );
}

/// L31, X38
#[test]
fn a_quoted_string_without_an_end_makes_its_line_unreadable_and_no_other() {
    for open in [
        r#"for=192.0.2.66;host="a, for=192.0.2.66"#,
        r#"for=192.0.2.66, for="192.0.2.67"#,
        r#"for=192.0.2.66;host="\"#,
        "\"",
    ] {
        assert_client(Forwarded, &[open], None);
        assert_client(Forwarded, &[format!("{open}, for=203.0.113.9")], None);
        assert_client(Forwarded, &[open, "for=203.0.113.9"], Some(CLIENT));
        assert_client(Forwarded, &["for=192.0.2.66", open, "for=10.0.0.2"], None);
    }
}

/// If a client leaves a quote open, the client's text is parsed as unquoted and the proxy's text as quoted. The
/// client's text, such as a host name, must not become a hop.
#[test]
fn quotes_of_a_client_and_of_a_proxy_make_no_hop_together() {
    for host in [
        ", for=192.0.2.66",
        ", for=192.0.2.66, ",
        r#", for=192.0.2.66;a=\"#,
        r#"\", for=192.0.2.66;a=\""#,
        ";for=192.0.2.66;a=",
    ] {
        for proxy in [
            format!(r#"for=203.0.113.9;host="{host}""#),
            format!(r#"host="{host}";for="203.0.113.9";by="10.0.0.1""#),
        ] {
            let line = format!(r#"for=192.0.2.66;x=", {proxy}"#);
            assert_client(Forwarded, &[line], None);
        }
    }
}

/// X38
#[test]
fn at_most_32_hops_are_walked_and_the_last_of_them_is_no_client_that_is_believed() {
    for (field, name) in LISTS {
        let hop = |hop: usize| format!("{name}10.0.1.{hop}");
        let trusted = |count: usize| (1..=count).rev().map(hop).collect::<Vec<_>>();
        let (last, client) = (Some("10.0.1.32"), format!("{name}{CLIENT}"));
        for (count, expected) in [(31, Some(CLIENT)), (32, last), (33, last), (200, last)] {
            let lines = [vec![client.clone()], trusted(count)].concat();
            let line = lines.join(", ");
            let believed = trusting(&field).believed(&request(Some(PROXY), &field, &[&line]));
            assert_eq!(believed, expected.filter(|_| expected != last).map(ip));
            assert_client(&field, &[line], expected);
            // In lines of their own.
            assert_client(&field, &lines, expected);
        }
        // The end of the list may be the 32nd hop.
        assert_client(&field, &[trusted(32).join(",")], last);
        assert_client(&field, &trusted(32), last);
        // Skipping elements at the left of one line does not continue the walk on the previous line.
        for count in [32, 33, 34, 201] {
            assert_client(&field, &[client.clone(), trusted(count).join(",")], last);
        }
    }
}

/// X38
#[test]
fn an_empty_field_is_not_an_absent_one() {
    for (field, name) in LISTS {
        let client = &*format!("{name}203.0.113.9");
        for empty in ["", ",", " , ,", "\t"] {
            assert_client(&field, &[empty], None);
            assert_client(&field, &[client, empty], None);
            assert_client(&field, &[empty, client], Some(CLIENT));
        }
        assert_client::<&str>(&field, &[], Some(PROXY));
    }
}

#[test]
fn a_thousand_hops_from_a_client_do_not_hide_it() {
    let line = format!("{}203.0.113.9, 10.0.0.2", "192.0.2.66,".repeat(1000));
    assert_client(XForwardedFor, &[line], Some(CLIENT));
    let line = format!("{}for=203.0.113.9, for=10.0.0.2", "for=1.1.1.1,".repeat(600));
    assert_client(Forwarded, &[line], Some(CLIENT));
    let line = format!("{}for=203.0.113.9", ",".repeat(8000));
    assert_client(Forwarded, &[line], Some(CLIENT));
}

/// X38
#[test]
fn of_a_long_line_the_last_8_kib_are_looked_at() {
    let long = "a".repeat(10_000);
    assert_client(XForwardedFor, &[&long], None);
    assert_client(XForwardedFor, &[format!("{long}, 203.0.113.9")], Some(CLIENT));
    assert_client(Forwarded, &[format!("for={long}, for=203.0.113.9")], None);
    let lines = [format!("for={long}"), "for=203.0.113.9".to_owned()];
    assert_client(Forwarded, &lines, Some(CLIENT));

    // The end of a truncated hop would be the address of another client.
    for (length, client) in [(MAX_LINE, Some(CLIENT)), (MAX_LINE + 1, None), (MAX_LINE + 2, None)] {
        let line = format!("{CLIENT}{:>1$}", ",10.0.0.2", length - CLIENT.len());
        assert_client(XForwardedFor, &[line], client);
    }
    for (length, client) in [(MAX_LINE, Some(CLIENT)), (MAX_LINE + 1, None)] {
        for (field, name) in LISTS {
            assert_client(field, &[format!("{:>length$}", format!("{name}{CLIENT}"))], client);
        }
    }
}

#[test]
fn ipv6_clients_are_grouped_by_their_64_and_ipv4_clients_not_at_all() {
    let key_of = |peer| key(&client_ip(), peer);
    assert_eq!(key_of("2001:db8:0:1::1"), key_of("2001:db8:0:1:ffff:ffff:ffff:ffff"));
    assert_ne!(key_of("2001:db8:0:1::1"), key_of("2001:db8:0:2::1"));
    assert_ne!(key_of("192.0.2.1"), key_of("192.0.2.2"));
    assert_eq!(key_of("192.0.2.1"), Some(ip("192.0.2.1").to_partition_key()));
    assert_ne!(key_of("192.0.2.1"), key_of("::192.0.2.1"));
}

#[test]
fn other_prefixes_group_more_or_fewer() {
    let wide = client_ip().ipv4_prefix(24).ipv6_prefix(48);
    assert_eq!(key(&wide, "192.0.2.1"), key(&wide, "192.0.2.254"));
    assert_ne!(key(&wide, "192.0.2.1"), key(&wide, "192.0.3.1"));
    assert_eq!(key(&wide, "2001:db8:0:1::1"), key(&wide, "2001:db8:0:2::1"));
    assert_ne!(key(&wide, "2001:db8:0:1::1"), key(&wide, "2001:db8:1:1::1"));
    let single = client_ip().ipv6_prefix(128);
    assert_ne!(key(&single, "2001:db8::1"), key(&single, "2001:db8::2"));
}

#[test]
fn mistakes_are_found_by_the_check_and_named() {
    let networks = "10.0.0.0/99|10.0.0.0/33|::/129|10.0.0.0/|10.0.0.0/+8|10.0.0.0/8/8|10.0.0/8|localhost|| ::1|fe80::1%1|\
                    10.0.0.0/-1";
    for network in networks.split('|') {
        let extractor = client_ip().trusted_proxies(XForwardedFor, ["10.0.0.0/8", network, "bad too"]);
        let error = extractor.check().unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Key);
        let message = format!("key: trusted proxy {network:?} is not an IP address or network");
        assert_eq!(error.to_string(), message);
    }
    for (extractor, message) in [
        (client_ip().ipv4_prefix(0), "key: IPv4 prefix 0 is outside 1..=32"),
        (client_ip().ipv4_prefix(33), "key: IPv4 prefix 33 is outside 1..=32"),
        (client_ip().ipv6_prefix(0), "key: IPv6 prefix 0 is outside 1..=128"),
        (client_ip().ipv6_prefix(129), "key: IPv6 prefix 129 is outside 1..=128"),
    ] {
        let error = extractor.check().unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (ConfigErrorKind::Key, message));
    }
}

/// L31
#[test]
fn a_list_with_a_mistake_trusts_nobody() {
    let extractor = client_ip().trusted_proxies(XForwardedFor, ["10.0.0.0/8", "mistake"]);
    let client = seen(&extractor, PROXY, XForwardedFor, &["192.0.2.66"]);
    assert_eq!(client, Some(ip(PROXY)));
}

#[test]
fn networks_and_bare_addresses_pass_the_check() {
    let networks = "10.0.0.0/8 ::1 192.0.2.1 FD00::/8 0.0.0.0/1 ::ffff:10.0.0.0/104";
    for networks in [vec![], networks.split(' ').collect()] {
        assert!(client_ip().trusted_proxies(Forwarded, networks).check().is_ok());
    }
    for (v4, v6) in [(1, 1), (32, 128)] {
        assert!(client_ip().ipv4_prefix(v4).ipv6_prefix(v6).check().is_ok());
    }
}

#[test]
fn networks_that_are_a_slip_or_every_address_are_an_error_that_says_what_to_write() {
    let everybody = |family: &str| {
        format!(
            "key: trusted proxies include all of {family}, so any client could forge its address; list the proxies, or \
             use `trust_any_peer()` if only proxies can connect"
        )
    };
    for (networks, message) in [
        (
            &["10.0.0.1/8"][..],
            r#"key: trusted proxy "10.0.0.1/8" has host bits set; use "10.0.0.0/8" or "10.0.0.1""#.to_owned(),
        ),
        (&["0.0.0.0/0"], everybody("0.0.0.0/0")),
        (&["10.0.0.1", "0.0.0.0/1", "128.0.0.0/1"], everybody("0.0.0.0/0")),
        (&["::ffff:0:0/96"], everybody("0.0.0.0/0")),
        (&["::/1", "8000::/1"], everybody("::/0")),
    ] {
        let error = client_ip().trusted_proxies(Forwarded, networks).check().unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let any_peer = client_ip().trusted_proxies(Forwarded, ["::1"]).trust_any_peer();
    assert!(any_peer.check().is_ok());
}

#[test]
fn a_translated_address_is_the_ipv4_address_in_it() {
    let client = |peer: &str, network: &str, lines: &[&str]| {
        let proxies = client_ip().trusted_proxies(XForwardedFor, [network]);
        seen(&proxies, peer, XForwardedFor, lines)
    };
    let key_of = |peer| key(&client_ip(), peer);
    assert_eq!(key_of("64:ff9b::192.0.2.1"), key_of("192.0.2.1"));
    assert_ne!(key_of("64:ff9b::192.0.2.1"), key_of("64:ff9b::192.0.2.2"));
    let translated = client("64:ff9b::10.0.0.1", "10.0.0.0/8", &["64:ff9b::203.0.113.9"]);
    assert_eq!(translated, Some(ip(CLIENT)));
    assert_eq!(client(PROXY, "64:ff9b::a00:0/104", &[CLIENT]), Some(ip(CLIENT)));
    // Local translation prefixes, 6to4 and Teredo remain IPv6.
    for address in [
        "64:ff9b:1::c000:201",
        "2002:c000:201::1",
        "2001:0:c000:201::1",
        "64:ff9b::1:c000:201",
    ] {
        assert_eq!(seen(&client_ip(), address, XForwardedFor, &[]), Some(ip(address)));
    }
}

/// The address always has a port, and IPv6 has no brackets: `2001:db8::1:5000` would be another address.
#[test]
fn the_viewer_of_cloudfront_has_a_port_behind_its_address() {
    let field = ForwardingField::SingleAddress("CloudFront-Viewer-Address".into());
    for (line, address) in [
        ("203.0.113.9:46532", Some("203.0.113.9")),
        ("2001:db8::1:5000", Some("2001:db8::1")),
        (
            "2001:db8:85a3:0:0:8a2e:370:7334:50000",
            Some("2001:db8:85a3::8a2e:370:7334"),
        ),
        ("2001:db8::1", None),
        ("203.0.113.9", None),
        ("203.0.113.9:", None),
        ("203.0.113.9:65536", None),
        ("203.0.113.9:+80", None),
        ("", None),
    ] {
        assert_client(&field, &[line], address);
    }
}

#[test]
fn a_trusted_peer_is_trusted_alone() {
    let by_sidecar = client_ip()
        .trusted_proxies(XForwardedFor, ["10.0.0.0/8"])
        .trust_any_peer();
    let client = |lines: &[&str]| seen(&by_sidecar, "192.0.2.1", XForwardedFor, lines);
    assert_eq!(client(&["192.0.2.66, 203.0.113.9"]), Some(ip(CLIENT)));
    assert_eq!(client(&["192.0.2.66, 203.0.113.9, 10.0.0.2"]), Some(ip(CLIENT)));
    assert_eq!(client(&[]), Some(ip("192.0.2.1")));
    assert_eq!(client(&["unknown"]), None);
}

#[test]
fn a_bare_address_trusts_that_machine_alone() {
    for (trusted, neighbour) in [
        ("10.0.0.1", "10.0.0.2"),
        ("fd00::1", "fd00::2"),
        ("10.0.0.1/32", "10.0.0.0"),
    ] {
        let extractor = client_ip().trusted_proxies(XForwardedFor, [trusted]);
        let resolve = |peer| seen(&extractor, peer, XForwardedFor, &[CLIENT]);
        assert_eq!(resolve(trusted.trim_end_matches("/32")), Some(ip(CLIENT)));
        assert_eq!(resolve(neighbour), Some(ip(neighbour)));
    }
}

#[test]
fn a_second_list_of_proxies_replaces_the_first() {
    let extractor = trusting(Forwarded).trusted_proxies(XForwardedFor, ["192.0.2.0/24"]);
    let of_first = seen(&extractor, PROXY, Forwarded, &["for=203.0.113.9"]);
    let of_second = seen(&extractor, "192.0.2.1", XForwardedFor, &[CLIENT]);
    assert_eq!((of_first, of_second), (Some(ip(PROXY)), Some(ip(CLIENT))));
}

#[cfg(feature = "axum")]
#[test]
fn the_peer_is_taken_from_axum_unless_the_server_has_set_it() {
    let mut request = request::<&str>(None, XForwardedFor, &[]);
    let peer = SocketAddr::new(ip("192.0.2.1"), 1);
    request.extensions.insert(axum::extract::ConnectInfo(peer));
    assert_eq!(client_ip().resolve(&request), Some(ip("192.0.2.1")));
    request.extensions.insert(PeerAddress(SocketAddr::new(ip(CLIENT), 1)));
    assert_eq!(client_ip().resolve(&request), Some(ip(CLIENT)));
}

#[cfg(feature = "tonic")]
#[test]
fn the_peer_is_taken_from_tonic_unless_it_does_not_know_it() {
    let mut request = request::<&str>(None, XForwardedFor, &[]);
    for remote_addr in [Some(SocketAddr::new(ip(CLIENT), 1)), None] {
        request.extensions.insert(tonic::transport::server::TcpConnectInfo {
            local_addr: None,
            remote_addr,
        });
        assert_eq!(client_ip().resolve(&request), remote_addr.map(|address| address.ip()));
    }
}

#[cfg(all(feature = "axum", feature = "tonic"))]
#[test]
fn where_several_say_who_the_peer_is_the_first_in_the_documented_order_counts() {
    let mut request = request::<&str>(None, XForwardedFor, &[]);
    let address = |text| SocketAddr::new(ip(text), 1);
    let resolved = |request: &Parts| client_ip().resolve(request);
    request.extensions.insert(tonic::transport::server::TcpConnectInfo {
        local_addr: None,
        remote_addr: Some(address("192.0.2.3")),
    });
    assert_eq!(resolved(&request), Some(ip("192.0.2.3")));
    request
        .extensions
        .insert(axum::extract::ConnectInfo(address("192.0.2.2")));
    assert_eq!(resolved(&request), Some(ip("192.0.2.2")));
    request.extensions.insert(PeerAddress(address("192.0.2.1")));
    assert_eq!(resolved(&request), Some(ip("192.0.2.1")));
}

fn real_ip() -> ForwardingField {
    SingleAddress("X-Real-IP".into())
}

/// L31
#[test]
fn a_field_with_one_address_names_the_client_of_a_trusted_proxy() {
    assert_clients(
        real_ip(),
        &[
            (&[], PROXY),
            (&["203.0.113.9"], CLIENT),
            (&[" 203.0.113.9\t"], CLIENT),
            (&["203.0.113.9:4711"], CLIENT),
            (&["::ffff:203.0.113.9"], CLIENT),
            (&["[::ffff:203.0.113.9]:4711"], CLIENT),
            (&["2001:DB8::1"], "2001:db8::1"),
            (&["[2001:db8::1]"], "2001:db8::1"),
            (&["[2001:db8::1]:4711"], "2001:db8::1"),
            // A machine of the operator behind a proxy.
            (&["10.0.0.2"], "10.0.0.2"),
        ],
    );
}

/// L31, X38
#[test]
fn two_lines_or_two_values_of_a_field_with_one_address_show_no_client() {
    for lines in [
        &["192.0.2.66", "203.0.113.9"][..],
        &["203.0.113.9", "203.0.113.9"],
        &["", "203.0.113.9"],
        &["203.0.113.9", ""],
        &["203.0.113.9", "10.0.0.2", "10.0.0.3"],
        &["192.0.2.66, 203.0.113.9"],
        &["203.0.113.9, 10.0.0.2"],
        &["203.0.113.9,"],
        &["for=203.0.113.9"],
        &[""],
    ] {
        assert_client(real_ip(), lines, None);
    }
    for hop in GARBAGE_HOPS.iter().flat_map(|hops| hops.split('|')) {
        assert_client(real_ip(), &[hop], None);
    }
}

/// L31
#[test]
fn of_two_forwarding_fields_only_the_named_one_is_read() {
    let mut request = request(Some(PROXY), real_ip(), &[CLIENT]);
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.66"),
        ("forwarded", "for=192.0.2.66"),
        ("true-client-ip", "192.0.2.66"),
    ] {
        request.headers.insert(name, HeaderValue::from_static(value));
    }
    assert_eq!(trusting(real_ip()).resolve(&request), Some(ip(CLIENT)));
    request.headers.remove("x-real-ip");
    assert_eq!(trusting(real_ip()).resolve(&request), Some(ip(PROXY)));
}

#[test]
fn a_name_that_no_field_with_one_address_has_is_found_by_the_check() {
    let list = |field| format!("contains a list of addresses; use `ForwardingField::{field}`");
    for (name, mistake) in [
        ("x real ip", "is not a valid header name".to_owned()),
        ("", "is not a valid header name".to_owned()),
        ("X-Forwarded-For", list("XForwardedFor")),
        ("FORWARDED", list("Forwarded")),
    ] {
        let extractor = trusting(SingleAddress(name.into()));
        let error = extractor.check().unwrap_err().to_string();
        assert_eq!(error, format!("key: {name:?} {mistake}"));
        // If a program ignores the error, no field is trusted.
        let client = seen(&extractor, PROXY, XForwardedFor, &["192.0.2.66"]);
        assert_eq!(client, Some(ip(PROXY)));
    }
    let at_run_time = SingleAddress(format!("X-{}-IP", "Edge").into());
    assert!(trusting(at_run_time).check().is_ok());
}

/// Pieces of valid values of both fields, separated by bars.
const PIECES: &str = r#"for=|For=|host=|,|, |;|"|\|=| |:80|_a|unknown|10.0.0.2|192.0.2.66|fd00::2|[2001:db8::1]:80"#;

/// A random field line of such pieces and random bytes.
fn line(random: &mut Sequence) -> Vec<u8> {
    let pieces: Vec<&str> = PIECES.split('|').collect();
    let bytes: Vec<u8> = [b'\t'].into_iter().chain(b' '..=b'~').chain(0x80..=0xff).collect();
    let piece = |random: &mut Sequence| match random.below(4) {
        0 => random.list(0..12, |random| random.any_of(&bytes)),
        _ => random.any_of(&pieces).as_bytes().to_vec(),
    };
    random.list(0..40, piece).concat()
}

fn field(random: &mut Sequence) -> ForwardingField {
    random.any_of(&[Forwarded, XForwardedFor])
}

/// A hop as proxies write it into `Forwarded`.
fn hop(random: &mut Sequence) -> &'static str {
    random.any_of(&[r#"for="203.0.113.9:4711";by="10.0.0.1""#, "for=203.0.113.9"])
}

/// L31
#[test]
fn no_field_moves_an_untrusted_peer() {
    for_many(512, |random| {
        let field = field(random);
        let request = request(Some(CLIENT), &field, &random.list(0..4, line));
        assert_eq!(trusting(field).resolve(&request), Some(ip(CLIENT)));
    });
}

/// If the client cannot be identified, it is unknown. No intermediate machine is treated as the client.
///
/// X38
#[test]
fn no_field_makes_a_client_of_a_machine_that_has_only_reported() {
    for_many(512, |random| {
        let (field, lines) = (field(random), random.list(1..4, line));
        let client = behind_proxy(&field, &lines);
        let leftmost = String::from_utf8_lossy(&lines[0]);
        let ends_at_a_proxy = ["10.0.0.2", "fd00::2"].iter().any(|proxy| leftmost.contains(proxy));
        assert!(client != Some(ip(PROXY)));
        assert!(client.is_none_or(|client| !trusting(field).trusts(client)) || ends_at_a_proxy);
    });
}

/// L31
#[test]
fn nothing_on_the_left_changes_the_hop_that_a_proxy_wrote() {
    for_many(512, |random| {
        let separate = random.list(1..4, line);
        let mut together = separate.clone();
        together.last_mut().unwrap().extend(b", 203.0.113.9");
        assert_eq!(behind_proxy(XForwardedFor, &together), Some(ip(CLIENT)));
        let followed_by = |hop: &str| [&separate[..], &[hop.into()]].concat();
        assert_eq!(behind_proxy(XForwardedFor, &followed_by(CLIENT)), Some(ip(CLIENT)));
        assert_eq!(behind_proxy(Forwarded, &followed_by(hop(random))), Some(ip(CLIENT)));
    });
}

/// On a line with an unterminated client quote, the proxy's hop is lost, but no other hop replaces it.
///
/// L31
#[test]
fn nothing_on_the_left_takes_the_place_of_a_forwarded_hop() {
    for_many(512, |random| {
        let (left, hop) = (line(random), hop(random));
        let client = |left: &[u8]| behind_proxy(Forwarded, &[[left, b", ", hop.as_bytes()].concat()]);
        assert!([Some(ip(CLIENT)), None].contains(&client(&left)));

        let without_quotes: Vec<u8> = left.into_iter().filter(|byte| *byte != b'"').collect();
        assert_eq!(client(&without_quotes), Some(ip(CLIENT)));
    });
}
