//! Amazon's S3 and the many that speak it: hosts, styles, and the keys' part of the V4 signature. Asks
//! no server anything: region and keys come from the settings.

use super::{Link, S3, Wish, encode_path, header_value, hex, hmac_sha256, v4};
use crate::model::Secret;

const AWS: [&str; 2] = ["", "s3.amazonaws.com"];

impl S3 {
    pub(super) fn sign(&self, wish: &Wish<'_>) -> Link {
        let (host, bucket) = self.host();
        let path = format!("{bucket}/{}", encode_path(wish.object));
        let scheme = if self.insecure { "http" } else { "https" };
        let mut headers = Vec::new();
        if !wish.cache_key.is_empty() {
            headers.push(("x-amz-meta-cachekey".to_owned(), header_value(wish.cache_key)));
        }
        if let Some(encryption) = &self.encryption {
            headers.push(("x-amz-server-side-encryption".to_owned(), encryption.algorithm.clone()));
            if !encryption.key_id.is_empty() {
                let name = "x-amz-server-side-encryption-aws-kms-key-id".to_owned();
                headers.push((name, encryption.key_id.clone()));
            }
        }
        let headers = v4::only_put(wish.verb, headers);
        let dialect = v4::Dialect {
            algorithm: "AWS4-HMAC-SHA256",
            prefix: "Amz",
            scope: format!("{}/s3/aws4_request", self.region),
            credential: self.access_key.clone(),
            session_token: self.session_token.reveal().to_owned(),
        };
        let signed = v4::presign(&dialect, wish, (scheme, &host, &path), &headers, |day, text| {
            Ok::<_, std::convert::Infallible>(self.seal(day, text))
        });
        let Ok(url) = signed;
        Link { url: Secret::new(url), headers }
    }

    pub(super) fn seal(&self, day: &str, text: &str) -> String {
        let first = hmac_sha256(format!("AWS4{}", self.secret_key.reveal()).as_bytes(), day);
        let steps = [self.region.as_str(), "s3", "aws4_request", text];
        hex(steps.iter().fold(first, |key, step| hmac_sha256(key.as_ref(), step)).as_ref())
    }

    /// The host, and where the bucket stands in the path: `/BUCKET`, or nowhere.
    fn host(&self) -> (String, String) {
        let (host, in_host) = match AWS.contains(&self.server.as_str()) {
            true => self.aws(),
            false => {
                let usual = if self.insecure { ":80" } else { ":443" };
                let host = self.server.strip_suffix(usual).unwrap_or(&self.server).to_owned();
                let capable = is_virtual(&host);
                (host, capable)
            }
        };
        let in_host = match self.path_style {
            Some(path) => !path && is_label(&self.bucket, self.insecure),
            None => in_host && is_label(&self.bucket, self.insecure),
        };
        match in_host {
            true => (format!("{}.{host}", self.bucket), String::new()),
            false => (host, format!("/{}", encode_path(&self.bucket))),
        }
    }

    fn aws(&self) -> (String, bool) {
        let region = &self.region;
        let end = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let host = match (self.accelerate && self.path_style != Some(true), self.dual_stack) {
            (true, true) => format!("s3-accelerate.dualstack.{end}"),
            (true, false) => format!("s3-accelerate.{end}"),
            (false, true) => format!("s3.dualstack.{region}.{end}"),
            (false, false) => format!("s3.{region}.{end}"),
        };
        (host, true)
    }
}

/// Hosts of others that know buckets by name.
fn is_virtual(host: &str) -> bool {
    let host = host.split(':').next().unwrap_or_default();
    host == "storage.googleapis.com" || host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
}

/// Whether a bucket can be part of a host's name; with dots no certificate would fit.
fn is_label(bucket: &str, insecure: bool) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || insecure && b == b'.';
    (3..=63).contains(&bucket.len()) && bucket.bytes().all(fits) && !bucket.starts_with('-') && !bucket.ends_with('-')
}
