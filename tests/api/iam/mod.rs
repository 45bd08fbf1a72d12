mod groups;
mod memberships;
mod users;
