mod chat_config;
