//! Whose certificates are believed: the system's bundle and the entry's own file; where the system has
//! none, the list that is built in.

use std::fs;
use std::path::Path;

use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// Where distributions keep their bundle; the first that holds a certificate is taken.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// `ca` is added to the system's. A file that is missing says nothing, one that cannot be read or holds
/// no certificate is named in a warning; both are done without (protocol §3.3).
pub(super) fn roots(ca: Option<&Path>) -> RootCerts {
    let mut all = BUNDLES.iter().map(|p| certificates(Path::new(p))).find(|c| !c.is_empty()).unwrap_or_default();
    if let Some(path) = ca.filter(|p| p.exists()) {
        let own = certificates(path);
        if own.is_empty() {
            log::warn!("{}: no certificate can be read from it; going on without", path.display());
        }
        all.extend(own);
    }
    if all.is_empty() { RootCerts::WebPki } else { RootCerts::from(all) }
}

fn certificates(path: &Path) -> Vec<Certificate<'static>> {
    let Ok(pem) = fs::read(path) else { return Vec::new() };
    parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(c)) => Some(c),
            _ => None,
        })
        .collect()
}
