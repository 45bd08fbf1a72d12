//! The table of users.

use farhand_domain::error::Error;
use serde::Deserialize;
use worker::Env;

use super::db::{self, Statement};

/// SQL for the user object (contract 5) of a row of `users u`, as JSON.
pub const OBJECT: &str = "json_object('id', u.id, 'username', u.username, 'email', u.email,
    'first_name', u.first_name, 'last_name', u.last_name,
    'is_active', json(iif(u.is_active, 'true', 'false')), 'is_staff', json(iif(u.is_staff, 'true', 'false')),
    'is_superuser', json(iif(u.is_superuser, 'true', 'false')), 'date_joined', u.date_joined, 'last_login', u.last_login)";

/// What a login needs to know.
#[derive(Debug)]
pub struct ForLogin {
    /// Whether the workspace exists.
    pub workspace_exists: bool,
    /// The user of that name who may log in: the id, and the PHC string of the password.
    pub user: Option<(i64, String)>,
}

/// Looks a name up for a login. An inactive user is as good as none.
pub async fn for_login(env: &Env, workspace: &str, username: &str) -> Result<ForLogin, Error> {
    let sql = "SELECT u.id AS id, u.password AS password
        FROM workspaces w LEFT JOIN users u ON u.workspace_id = w.id AND u.username = ?2 AND u.is_active = 1
        WHERE w.slug = ?1 AND w.deleted_at IS NULL";
    #[derive(Deserialize)]
    struct Row {
        id: Option<f64>,
        password: Option<String>,
    }
    let result = db::run(env, Statement::new(sql).bind(workspace).bind(username)).await?;
    let row = db::first::<Row>(&result)?;
    Ok(ForLogin { workspace_exists: row.is_some(), user: row.and_then(|row| Some((row.id? as i64, row.password?))) })
}
