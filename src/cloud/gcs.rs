//! Google's Cloud Storage: a service account's key signs the URL. Asks no server anything.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::rsa::KeyPair;
use ring::signature::RSA_PKCS1_SHA256;

use super::{Gcs, Link, Wish, encode_path, header_value, hex, v4};
use crate::model::Secret;

impl Gcs {
    pub(super) fn sign(&self, wish: &Wish<'_>) -> Result<Link, String> {
        let key = key(self.private_key.reveal())?;
        let mut headers = vec![("content-type".to_owned(), "application/octet-stream".to_owned())];
        if wish.max_size > 0 {
            headers.push(("x-goog-content-length-range".to_owned(), format!("0,{}", wish.max_size)));
        }
        if !wish.cache_key.is_empty() {
            headers.push(("x-goog-meta-cachekey".to_owned(), header_value(wish.cache_key)));
        }
        let headers = v4::only_put(wish.verb, headers);
        let dialect = v4::Dialect {
            algorithm: "GOOG4-RSA-SHA256",
            prefix: "Goog",
            scope: "auto/storage/goog4_request".to_owned(),
            credential: self.access_id.clone(),
            session_token: String::new(),
        };
        let universe = if self.universe.is_empty() { "googleapis.com" } else { &self.universe };
        let host = format!("storage.{universe}");
        let path = format!("/{}/{}", encode_path(&self.bucket), encode_path(wish.object));
        let url = v4::presign(&dialect, wish, ("https", &host, &path), &headers, |_, text| {
            let mut signature = vec![0; key.public().modulus_len()];
            key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
                .map_err(|_| "the private key cannot sign".to_owned())?;
            Ok::<_, String>(hex(&signature))
        })?;
        Ok(Link { url: Secret::new(url), headers })
    }
}

/// `BEGIN PRIVATE KEY` or `BEGIN RSA PRIVATE KEY`, newlines as such or as `\n`.
fn key(pem: &str) -> Result<KeyPair, String> {
    let pem = pem.replace("\\n", "\n");
    let begin = pem.find("-----BEGIN ").ok_or("the private key is no PEM text")?;
    let (kind, rest) = pem[begin + 11..].split_once("-----").ok_or("the private key is no PEM text")?;
    let body = rest.split("-----END ").next().unwrap_or_default();
    let body: String = body.chars().filter(|c| !c.is_whitespace()).collect();
    let der = STANDARD.decode(body).map_err(|_| "the private key is no base64".to_owned())?;
    match kind {
        "PRIVATE KEY" => KeyPair::from_pkcs8(&der),
        "RSA PRIVATE KEY" => KeyPair::from_der(&der),
        other => return Err(format!("a {other:?} is not what signs URLs, an RSA private key does")),
    }
    .map_err(|e| format!("the private key cannot be used: {e}"))
}
