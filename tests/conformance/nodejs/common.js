'use strict';
// The options of every client.
const silent = () => {};
module.exports = {
  endpoints: process.env.ENDPOINTS || '127.0.0.1:8081',
  namespace: '',
  requestTimeout: 5000,
  sslEnabled: process.env.SSL === 'true',
  ...(process.env.ACCESS_KEY && {
    sessionCredentials: { accessKey: process.env.ACCESS_KEY, accessSecret: process.env.SECRET_KEY },
  }),
  logger: { debug: silent, info: silent, warn: silent, error: silent },
};
