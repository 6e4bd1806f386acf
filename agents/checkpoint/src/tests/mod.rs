mod damage;
mod files;
mod lifecycle;
