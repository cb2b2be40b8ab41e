//! Azure's blobs: a shared access signature for one blob, by the account's key. Asks no server anything.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Azure, Link, Verb, Wish, encode, encode_path, hmac_sha256, iso};
use crate::model::Secret;

/// The oldest that knows all that we sign: also emulators and private clouds understand it.
const VERSION: &str = "2020-12-06";
/// Clocks differ.
const EARLIER: Duration = Duration::from_secs(3600);

impl Azure {
    pub(super) fn sign(&self, wish: &Wish<'_>) -> Result<Link, String> {
        let key = STANDARD.decode(self.key.reveal().trim()).map_err(|_| "the AccountKey is no base64".to_owned())?;
        let permission = if wish.verb == Verb::Put { "w" } else { "r" };
        let (start, end) = (iso(wish.now.checked_sub(EARLIER).unwrap_or(wish.now)), iso(wish.now + wish.valid));
        let resource = format!("/blob/{}/{}/{}", self.account, self.container, wish.object);
        // Empty lines: identifier, address; at the end snapshot, encryption scope and five headers.
        let text = format!("{permission}\n{start}\n{end}\n{resource}\n\n\nhttps\n{VERSION}\nb\n\n\n\n\n\n\n");
        let signature = STANDARD.encode(hmac_sha256(&key, &text));
        let url = format!(
            "https://{}.{}/{}/{}?st={}&se={}&sp={permission}&spr=https&sv={VERSION}&sr=b&sig={}",
            self.account,
            self.domain,
            encode_path(&self.container),
            encode_path(wish.object),
            encode(&start, b""),
            encode(&end, b""),
            encode(&signature, b"")
        );
        let headers = match wish.verb {
            Verb::Put => vec![("x-ms-blob-type".to_owned(), "BlockBlob".to_owned())],
            Verb::Get | Verb::Head => Vec::new(),
        };
        Ok(Link { url: Secret::new(url), headers })
    }
}
