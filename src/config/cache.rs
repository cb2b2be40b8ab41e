//! `[runners.cache]`: where caches lie beside this host, and the keys that sign for it. A store that
//! cannot be used is a warning, and the entry's caches stay on this host.

use std::fs;

use super::Surroundings;
use super::table::Table;
use crate::cloud::{Azure, CacheSettings, Encryption, Gcs, S3, Store};
use crate::model::Secret;

pub(super) fn read(entry: &Table<'_>, around: &Surroundings<'_>) -> CacheSettings {
    let Some(table) = entry.table("cache") else { return CacheSettings::default() };
    let kind = text(&table, "type").to_lowercase();
    let mut settings = CacheSettings {
        path: text(&table, "path"),
        shared: table.flag("shared").unwrap_or(false),
        max_size: u64::try_from(table.number("maxuploadedarchivesize").unwrap_or(0)).unwrap_or(0),
        store: None,
    };
    // `register` writes all three into every file, so the others are looked at for mistakes only.
    let s3 = table.table("s3").map(|t| (s3(&t, around), t));
    let gcs = table.table("gcs").map(|t| (gcs(&t, around), t));
    let azure = table.table("azure").map(|t| (azure(&t), t));
    let missing = |name: &str| Err(format!("there is no [runners.cache.{name}]"));
    let store = match kind.as_str() {
        "" => None,
        "s3" => Some(s3.as_ref().map_or(missing("s3"), |(s, _)| s.clone())),
        "gcs" => Some(gcs.as_ref().map_or(missing("gcs"), |(s, _)| s.clone())),
        "azure" => Some(azure.as_ref().map_or(missing("azure"), |(s, _)| s.clone())),
        other => Some(Err(format!("there is no type {other:?}, only s3, gcs and azure"))),
    };
    match store.map(|made| made.and_then(|s| s.check().map(|()| s))) {
        None => {}
        Some(Ok(store)) => settings.store = Some(store),
        Some(Err(why)) => table.warn("type", &format!("{why}; caches stay on this host")),
    }
    for table in [s3.map(|(_, t)| t), gcs.map(|(_, t)| t), azure.map(|(_, t)| t), Some(table)].into_iter().flatten() {
        table.leftovers(&[]);
    }
    settings
}

fn s3(table: &Table<'_>, around: &Surroundings<'_>) -> Result<Store, String> {
    let server = text(table, "serveraddress");
    let server = server.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut s3 = S3 {
        insecure: table.flag("insecure").unwrap_or(false),
        bucket: text(table, "bucketname"),
        region: region(table, &server),
        access_key: text(table, "accesskey"),
        secret_key: Secret::new(text(table, "secretkey")),
        session_token: Secret::new(text(table, "sessiontoken")),
        path_style: table.flag("pathstyle"),
        dual_stack: table.flag("dualstack").unwrap_or(true),
        accelerate: table.flag("accelerate").unwrap_or(false),
        encryption: encryption(table)?,
        server,
    };
    let authentication = text(table, "authenticationtype").to_lowercase();
    let roles = [text(table, "rolearn"), text(table, "uploadrolearn")];
    // They belong to the roles, and `register` writes them.
    table.raw("assumerolemaxconcurrency");
    table.raw("disableassumerolecredentialscaching");
    if s3.bucket.is_empty() {
        return Err("BucketName cannot be empty".to_owned());
    }
    if roles.iter().any(|role| !role.is_empty()) {
        return Err("roles (RoleARN, UploadRoleARN) cannot be assumed, set AccessKey and SecretKey instead".to_owned());
    }
    match authentication.as_str() {
        "" | "access-key" | "iam" => {}
        other => return Err(format!("there is no AuthenticationType {other:?}, only access-key and iam")),
    }
    if authentication == "iam" || s3.access_key.is_empty() || s3.secret_key.is_empty() {
        let set = |name: &str| (around.env)(name).filter(|v| !v.is_empty());
        let (Some(id), Some(key)) = (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) else {
            return Err("there are no keys: set AccessKey and SecretKey, or AWS_ACCESS_KEY_ID and \
                        AWS_SECRET_ACCESS_KEY in the runner's environment (an instance's own role is not asked for)"
                .to_owned());
        };
        (s3.access_key, s3.secret_key) = (id, Secret::new(key));
        s3.session_token = Secret::new(set("AWS_SESSION_TOKEN").unwrap_or_default());
    }
    Ok(Store::S3(s3))
}

/// It is part of what is signed. No server is asked, so Amazon's buckets elsewhere must name theirs.
fn region(table: &Table<'_>, server: &str) -> String {
    match text(table, "bucketlocation").as_str() {
        "" => {
            // `s3.REGION.amazonaws.com`, `s3.dualstack.REGION.amazonaws.com`
            let name = server.split(".amazonaws.com").next().filter(|n| n.len() < server.len()).unwrap_or_default();
            let last = name.rsplit(['.']).next().unwrap_or_default();
            if last.contains('-') && !last.starts_with("s3") { last.to_owned() } else { "us-east-1".to_owned() }
        }
        "EU" => "eu-west-1".to_owned(),
        named => named.to_owned(),
    }
}

fn encryption(table: &Table<'_>) -> Result<Option<Encryption>, String> {
    let kind = text(table, "serversideencryption");
    let key_id = text(table, "serversideencryptionkeyid");
    let algorithm = match kind.to_uppercase().as_str() {
        "" => return Ok(None),
        "S3" | "AES256" => "AES256",
        "KMS" | "AWS:KMS" => "aws:kms",
        "DSSE-KMS" | "AWS:KMS:DSSE" => "aws:kms:dsse",
        _ => return Err(format!("there is no ServerSideEncryption {kind:?}, only S3, KMS and DSSE-KMS")),
    };
    let key_id = if algorithm == "AES256" { String::new() } else { key_id };
    Ok(Some(Encryption { algorithm: algorithm.to_owned(), key_id }))
}

fn gcs(table: &Table<'_>, around: &Surroundings<'_>) -> Result<Store, String> {
    let mut gcs = Gcs {
        bucket: text(table, "bucketname"),
        universe: text(table, "universedomain"),
        access_id: text(table, "accessid"),
        private_key: Secret::new(text(table, "privatekey")),
    };
    let file = text(table, "credentialsfile");
    if gcs.bucket.is_empty() {
        return Err("BucketName cannot be empty".to_owned());
    }
    let from_env = (around.env)("GOOGLE_APPLICATION_CREDENTIALS").filter(|_| gcs.private_key.is_empty());
    if let Some(file) = Some(file).filter(|f| !f.is_empty()).or(from_env) {
        let path = around.directory.join(file);
        let said = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let bytes = fs::read(&path).map_err(|e| said(&e))?;
        let account: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| said(&e))?;
        let field = |name: &str| account[name].as_str().unwrap_or_default().to_owned();
        gcs.access_id = field("client_email");
        gcs.private_key = Secret::new(field("private_key"));
        if gcs.universe.is_empty() {
            gcs.universe = field("universe_domain");
        }
    }
    if gcs.access_id.is_empty() || gcs.private_key.is_empty() {
        return Err(
            "there is no service account's key: set CredentialsFile, or AccessID and PrivateKey (an instance's \
                    own account is not asked for)"
                .to_owned(),
        );
    }
    Ok(Store::Gcs(gcs))
}

fn azure(table: &Table<'_>) -> Result<Store, String> {
    let domain = Some(text(table, "storagedomain")).filter(|d| !d.is_empty());
    let azure = Azure {
        account: text(table, "accountname"),
        key: Secret::new(text(table, "accountkey")),
        container: text(table, "containername"),
        domain: domain.unwrap_or_else(|| "blob.core.windows.net".to_owned()),
    };
    match () {
        () if azure.container.is_empty() => Err("ContainerName can't be empty".to_owned()),
        () if azure.account.is_empty() || azure.key.is_empty() => {
            Err("AccountName and AccountKey are needed (an instance's own identity is not asked for)".to_owned())
        }
        () => Ok(Store::Azure(azure)),
    }
}

fn text(table: &Table<'_>, key: &str) -> String {
    table.string(key).map(|s| s.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read::parse;
    use super::*;

    fn check(cache: &str, env: &dyn Fn(&str) -> Option<String>) -> (CacheSettings, Vec<String>) {
        let text = format!("[[runners]]\nurl='https://g'\ntoken='t'\n{cache}");
        let around = Surroundings {
            env,
            root: true,
            directory: Path::new(env!("CARGO_MANIFEST_DIR")).into(),
            user: None,
            unfit: &|_| None,
        };
        let mut config = parse(Path::new("c"), &text, &around).unwrap_or_else(|e| panic!("{e}"));
        (config.entries.remove(0).cache, config.warnings)
    }

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn what_register_writes_asks_for_nothing() {
        let (cache, warnings) = check(
            "[runners.cache]\nMaxUploadedArchiveSize = 0\n[runners.cache.s3]\nAssumeRoleMaxConcurrency = 0\n\
             [runners.cache.gcs]\n[runners.cache.azure]",
            &none,
        );
        assert_eq!((cache, warnings), (CacheSettings::default(), vec![]));
    }

    #[test]
    fn keys_are_matched_in_any_case() {
        let (cache, warnings) = check(
            "[runners.cache]\ntype='S3'\nPath='p'\nSHARED=true\nmaxUploadedArchiveSize=7\n[runners.cache.S3]\n\
             serverAddress='https://minio.example:9000/'\naccesskey='a'\nSecretKey='s'\nbucketName='b'\n\
             ServerSideEncryption='kms'\nServerSideEncryptionKeyID='k'\nPathStyle=false",
            &none,
        );
        assert_eq!(warnings, [""; 0]);
        let want = S3 {
            server: "minio.example:9000".into(),
            bucket: "b".into(),
            region: "us-east-1".into(),
            access_key: "a".into(),
            secret_key: Secret::new("s"),
            path_style: Some(false),
            dual_stack: true,
            encryption: Some(Encryption { algorithm: "aws:kms".into(), key_id: "k".into() }),
            ..S3::default()
        };
        assert_eq!(cache, CacheSettings { path: "p".into(), shared: true, max_size: 7, store: Some(Store::S3(want)) });
    }

    #[test]
    fn a_store_that_cannot_be_used_leaves_caches_on_this_host() {
        for (rest, want) in [
            ("Type='s3'", "there is no [runners.cache.s3]"),
            ("Type='ftp'", "there is no type \"ftp\", only s3, gcs and azure"),
            ("Type='s3'\n[runners.cache.s3]\nAccessKey='a'", "BucketName cannot be empty"),
            (
                "Type='s3'\n[runners.cache.s3]\nBucketName='b'\nRoleARN='r'",
                "roles (RoleARN, UploadRoleARN) cannot be assumed, set AccessKey and SecretKey instead",
            ),
            (
                "Type='gcs'\n[runners.cache.gcs]\nBucketName='b'\nAccessID='a'\nPrivateKey='x'",
                "the private key is no PEM text",
            ),
            ("Type='azure'\n[runners.cache.azure]\nAccountName='b'", "ContainerName can't be empty"),
            (
                "Type='azure'\n[runners.cache.azure]\nAccountName='b'\nAccountKey='?'\nContainerName='c'",
                "the AccountKey is no base64",
            ),
        ] {
            let (cache, warnings) = check(&format!("[runners.cache]\n{rest}"), &none);
            assert_eq!(warnings, [format!("c:5: runners.cache.type: {want}; caches stay on this host")]);
            assert_eq!(cache.store, None);
        }
    }

    #[test]
    fn keys_come_from_the_environment_where_the_file_has_none() {
        let env = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some("id".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("key".to_owned()),
            "AWS_SESSION_TOKEN" => Some("session".to_owned()),
            _ => None,
        };
        let (cache, warnings) = check("[runners.cache]\nType='s3'\n[runners.cache.s3]\nBucketName='b'", &env);
        assert_eq!(warnings, [""; 0]);
        let Some(Store::S3(s3)) = cache.store else { panic!() };
        assert_eq!(
            (s3.access_key.as_str(), s3.secret_key.reveal(), s3.session_token.reveal()),
            ("id", "key", "session")
        );
    }

    #[test]
    fn a_region_is_found_in_amazons_own_hosts() {
        for (server, location, want) in [
            ("", "", "us-east-1"),
            ("", "EU", "eu-west-1"),
            ("s3.amazonaws.com", "", "us-east-1"),
            ("s3.eu-central-1.amazonaws.com", "", "eu-central-1"),
            ("https://s3.dualstack.ap-south-1.amazonaws.com/", "", "ap-south-1"),
            ("s3.cn-north-1.amazonaws.com.cn", "", "cn-north-1"),
            ("minio.in-house.example", "", "us-east-1"),
            ("s3.eu-central-1.amazonaws.com", "x", "x"),
        ] {
            let (cache, _) = check(
                &format!(
                    "[runners.cache]\nType='s3'\n[runners.cache.s3]\nBucketName='b'\nAccessKey='a'\nSecretKey='s'\n\
                     ServerAddress='{server}'\nBucketLocation='{location}'"
                ),
                &none,
            );
            let Some(Store::S3(s3)) = cache.store else { panic!() };
            assert_eq!(s3.region, want, "{server}");
        }
    }
}
